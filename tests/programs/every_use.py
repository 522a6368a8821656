"""Runs every use once, in one job; notes when, and saves what each left.

`every_use.py NAME [--only USE]` writes NAME.<rank>.pt and NAME.<rank>.json.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from uses import USES


def main(name: str, wanted: list[str]) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    outcomes, windows = {}, {}
    for use in wanted:
        dist.barrier()
        torch.manual_seed(5)
        begin = time.monotonic_ns()
        outcome = USES[use].run()
        windows[use] = (begin, time.monotonic_ns())
        outcomes[use] = vars(outcome)
    dist.barrier()
    rank = dist.get_rank()
    torch.save(outcomes, f"{name}.{rank}.pt")
    with open(f"{name}.{rank}.json", "w", encoding="utf-8") as file:
        json.dump(windows, file)
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2:] or list(USES))
