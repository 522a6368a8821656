"""Real ranks with a loader for the training and one for validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor import load_run
from tests.jobs.test_recording import findings, report_of
from tests.launching import PROGRAMS, finish, torchrun

pytestmark = pytest.mark.job

PROGRAM = PROGRAMS / "slow_validation.py"


def run_of(folder: Path):
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    return load_run(run)


def test_a_validation_loader_is_no_input_of_the_training(tmp_path: Path) -> None:
    """It draws the same samples on every rank and is slow, and neither is a fault of training."""
    done = finish(torchrun(PROGRAM), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert findings(report, "DD301") == []
    assert findings(report, "DD302") == []
    assert all(rank["between_ms"] > rank["input_ms"] for rank in report["time"]["ranks"])
    for trace in run_of(tmp_path).ranks:
        (loader,) = trace.loaders.values()
        assert loader.dataset_length == 160
        assert [epoch.epoch for epoch in trace.drawn] == [0, 1, 2, 3, 4]


def test_ranks_that_split_a_model_may_share_samples(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAM, "--pairs", ranks=4), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert findings(report, "DD302") == []
    members = [trace.ddp_groups[0].ranks for trace in run_of(tmp_path).ranks]
    assert members == [(0, 2), (1, 3), (0, 2), (1, 3)]
