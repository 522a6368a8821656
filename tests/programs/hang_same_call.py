"""Each rank is in the same line, but in another group: nobody can complete."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group(), dist.new_group()]
    Path(sys.argv[1], f"ready-{rank}").touch()
    dist.all_reduce(torch.zeros(8), group=groups[rank])
    dist.destroy_process_group()


main()
