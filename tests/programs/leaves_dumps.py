"""Three ranks write dumps of torch's flight recorder twice: rank 1 is missing, then one call ahead.

The first time rank 1 comes after all. The second time it has made a call that the others do not
make, and stays in its last one.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json


def dump(folder: str) -> None:
    target = Path(sys.argv[1], folder)
    target.mkdir(exist_ok=True)
    (target / f"trace_{dist.get_rank()}").write_bytes(_dump_fr_trace(True, True, False))
    as_json = target.with_name(f"{folder}-json")
    as_json.mkdir(exist_ok=True)
    (as_json / f"rank{dist.get_rank()}.json").write_bytes(_dump_fr_trace_json(True, False))


def until_all_wrote(folder: str) -> None:
    while len(list(Path(sys.argv[1], f"{folder}-json").glob("*.json"))) < 3:
        time.sleep(0.05)
    time.sleep(0.2)


def missing(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    wait = None
    if rank != 1:
        wait = dist.all_reduce(torch.ones(4), async_op=True)
    time.sleep(0.3)  # the recorder hears of a call's end a moment after the rank does
    dump("missing")
    until_all_wrote("missing")
    if wait is None:
        dist.all_reduce(torch.ones(4))
    else:
        wait.wait()


def one_ahead(rank: int) -> None:
    last = None
    for step in range(4):
        if rank == 1 and step == 1:
            dist.all_reduce(torch.ones(4))  # the others never come here
        dist.all_reduce(torch.ones(4))
        last = dist.all_reduce(torch.ones(4), async_op=True)
        if step < 3:
            last.wait()
    time.sleep(1)
    dump("one_ahead")
    until_all_wrote("one_ahead")


def main() -> None:
    dist.init_process_group("gloo")
    missing(dist.get_rank())
    one_ahead(dist.get_rank())
    os._exit(0)  # a process group cannot be taken down while a call of it is pending


main()
