"""Rank 1 prepares data for all, and needs more memory than there is; the others wait for its file.

It takes at most 4 GiB, should nothing limit it.
"""

import sys
import time
from pathlib import Path

import torch.distributed as dist

MIB = 2**20
MOST = 4096


def prepare(path: Path) -> None:
    hoard = [b"x" * MIB for _ in range(MOST)]
    path.write_text(f"{len(hoard)} shards")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = Path(sys.argv[1])
    (folder / f"ready-{rank}").touch()
    while rank == 1 and not (folder / "limited").exists():
        time.sleep(0.05)
    if rank == 1:
        prepare(folder / "data")
    while not (folder / "data").exists():
        time.sleep(1)
    dist.destroy_process_group()


main()
