"""What `ddpdoctor run` starts."""

from __future__ import annotations

import sys

import pytest

from ddpdoctor.launch import command_of

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.parametrize(
    ("typed", "started"),
    [
        (["--nproc-per-node", "2", "train.py"], [*TORCHRUN, "--nproc-per-node", "2", "train.py"]),
        (["torchrun", "--standalone", "train.py"], [*TORCHRUN, "--standalone", "train.py"]),
        (["train.py", "torchrun"], [*TORCHRUN, "train.py", "torchrun"]),
        ([sys.executable, "spawns.py", "--lr", "1"], [sys.executable, "spawns.py", "--lr", "1"]),
        (["python0", "spawns.py"], [sys.executable, "spawns.py"]),  # is nowhere: the one that runs
        (["python.py"], [*TORCHRUN, "python.py"]),
    ],
)
def test_torchrun_and_python_may_stand_there_already(typed: list[str], started: list[str]) -> None:
    assert command_of(typed) == started
