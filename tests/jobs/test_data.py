"""Real ranks with loaders: for validation, with a fault each, and without one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor import load_run
from tests.jobs.test_recording import findings, report_of
from tests.launching import PROGRAMS, ddpdoctor, finish, started, torchrun

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


@pytest.mark.long
def test_ranks_that_split_a_model_may_share_samples(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAM, "--pairs", ranks=4), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert findings(report, "DD302") == []
    members = [trace.ddp_groups[0].ranks for trace in run_of(tmp_path).ranks]
    assert members == [(0, 2), (1, 3), (0, 2), (1, 3)]


FAULTS = PROGRAMS / "data_faults.py"
FAULTY = {  # where each fault is, what it is and which ranks have it
    "wrong_rank": ("DD303", [1]),
    "wrong_seed": ("DD303", [0, 1]),
    "same_order": ("DD305", [0, 1]),
    "stream_for_all": ("DD306", [0, 1]),
    "stream_for_all_workers": ("DD306", [0, 1]),
    "other_order": ("DD307", [0, 1]),
    "other_length": ("DD307", [0, 1]),
    "same_augmentation": ("DD308", [0, 1]),
    "same_augmentation_by_workers": ("DD308", [0, 1]),
}


def warned(report: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    """Of every finding on the data at warning or above: its place, code and culprits.

    Not of DD301: how long such small batches take to load is no matter here.
    """
    return sorted(
        (finding["where"][0]["function"].rpartition(".")[2], result["code"], finding["culprits"])
        for result in report["results"]
        for finding in result["findings"]
        if "DD301" < result["code"] < "DD4" and finding["severity"] != "info"
    )


def test_every_fault_of_the_data_is_found_where_it_is(tmp_path: Path) -> None:
    done = finish(torchrun(FAULTS), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert warned(report) == sorted(
        (place, code, culprits) for place, (code, culprits) in FAULTY.items()
    )
    assert not any(trace.notes for trace in run_of(tmp_path).ranks)


def test_the_same_loaders_without_a_fault_are_clean(tmp_path: Path) -> None:
    """Uneven batches are among them, once within `join` and once cut to the shortest."""
    done = finish(torchrun(FAULTS, "--healthy"), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path)

    assert warned(report) == []
    looked = {r["code"] for r in report["results"] if r["outcome"] == "clean"}
    assert looked >= {code for code, _ in FAULTY.values()} | {"DD304"}


def test_uneven_batches_are_told_before_the_job_hangs_and_when_it_does(tmp_path: Path) -> None:
    with started(torchrun(PROGRAMS / "hang_uneven_batches.py"), tmp_path):
        wait_until(lambda: facts_of(tmp_path).count('"fact": "loader"') == 2)
        before = uneven(tmp_path)
        wait_until(lambda: uneven(tmp_path)["confidence"] == "certain")
        after = uneven(tmp_path)

    for finding in (before, after):
        assert (finding["culprits"], finding["victims"]) == ([1], [0])
        assert "step 61" in finding["message"]
    assert (before["severity"], before["confidence"]) == ("error", "likely")
    assert "waits for rank 1, which has none left" in after["message"]


def facts_of(folder: Path) -> str:
    files = (folder / "ddpdoctor_runs").glob("*/attempt-0/*.facts.jsonl")
    return "".join(file.read_text() for file in files)


def uneven(folder: Path) -> dict[str, Any]:
    """What the report on the running job says."""
    done = finish(ddpdoctor("report", "--json"), folder)
    assert done.status == 1, done.err
    (finding,) = findings(json.loads(done.out), "DD304")
    return finding


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.1)
