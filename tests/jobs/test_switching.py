"""Recording that is switched by the step: all ranks alike, and the training as without us."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.recorder.writer import RING_RECORDS
from tests.launching import (
    TRAIN,
    ddpdoctor,
    environment,
    finish,
    finish_unrecorded,
    started,
    torchrun,
)

pytestmark = pytest.mark.job

STEPS = 1500  # of 8 ms at least: longer than it takes to switch off and on again


def steps_of_each_rank(analysis: Analysis) -> list[list[int]]:
    steps = analysis.tables.steps
    return [steps["sync"][steps["rank"] == rank].tolist() for rank in range(2)]


def ring_begins(kept: list[int]) -> int:
    """From here to the end each step is kept."""
    return next(after for before, after in reversed(list(pairwise(kept))) if after - before > 1)


@pytest.mark.long
def test_switched_off_and_on_while_it_runs_all_ranks_record_the_same_steps(
    tmp_path: Path,
) -> None:
    options = ["--steps", str(STEPS), "--fault", "between", "--late-ms", "8"]
    plain_command = torchrun(TRAIN, "--steps", str(STEPS), "--save", "plain")
    plain = finish_unrecorded(plain_command, tmp_path)
    assert plain.status == 0, plain.err
    command = torchrun(TRAIN, *options, "--wrap", "--save", "switched")
    with started(command, tmp_path) as job:
        wait_for_a_run(tmp_path, job)
        off = finish(ddpdoctor("record", "off"), tmp_path)
        on = finish(ddpdoctor("record", "on", "--steps", "100"), tmp_path)
        assert job.poll() is None, "the job ended before it was switched"
        _, err = job.communicate(timeout=90)
    assert job.returncode == 0, err
    assert (off.status, on.status) == (0, 0), off.err + on.err
    assert "heard by 2 of 2 ranks" in off.out
    assert "heard by 2 of 2 ranks" in on.out

    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    analysis = analyze(load_run(run))
    one, other = steps_of_each_rank(analysis)
    last, first = (int(done.out.split(word)[1].split()[0].rstrip(";"))
                   for done, word in ((off, "with step"), (on, "for steps")))  # fmt: skip
    assert one == other
    assert one[-100:] == list(range(first, first + 100))
    assert one[-101] == last - 1
    assert first + 99 < STEPS
    assert_nothing_is_made_of_the_gap(analysis, first)
    assert f"recorded steps 1 to {last - 1}, {first} to {first + 99}; " in err.replace("\n", " ")
    for rank in range(2):
        expected = torch.load(tmp_path / f"plain.{rank}")
        weights = torch.load(tmp_path / f"switched.{rank}")
        assert all(torch.equal(weights[key], expected[key]) for key in expected)

    ended = finish(ddpdoctor("record", "off"), tmp_path)
    assert ended.status == 2
    assert "this run has ended" in ended.err


def assert_nothing_is_made_of_the_gap(analysis: Analysis, first: int) -> None:
    """The step after it is as long as the others, and collectives kept their numbers meanwhile."""
    steps = analysis.tables.steps
    after = steps[steps["sync"] == first]
    assert (after["step_ns"] < 20 * steps["step_ns"].median()).all()
    calls = analysis.tables.collectives
    buckets = calls[calls["bucket"] == 0]
    settled = buckets[buckets["sync"] > 5]  # DDP makes its buckets anew before
    a_step = len(calls[calls["sync"] == first]) // 2
    assert (settled["seq"] - a_step * settled["sync"]).nunique() == 1
    assert settled["complete"].all()
    assert settled["sync"].min() < first < settled["sync"].max()


def wait_for_a_run(folder: Path, job) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert job.poll() is None, "the job ended early"
        if len(list(folder.glob("ddpdoctor_runs/*/*/rank*.ddt"))) == 2:
            return
        time.sleep(0.1)
    raise AssertionError("no run in time")


def test_a_window_of_steps_of_which_few_are_kept_in_detail(tmp_path: Path) -> None:
    """By pyproject.toml and the environment; a step has about 8 records, the ring 4,096."""
    (tmp_path / "pyproject.toml").write_text("[tool.ddpdoctor]\ndetail-every = 50\n")
    command = torchrun(TRAIN, "--wrap", "--steps", "1000", "--width", "16", "--batch-size", "2")
    done = finish(command, tmp_path, environment(DDPDOCTOR_STEPS="11:900"))
    assert done.status == 0, done.err

    status = finish(ddpdoctor("report", "--json", "--fail-on", "never"), tmp_path)
    notes = json.loads(status.out)["notes"]
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    loaded = load_run(run)

    assert "recorded steps 11 to 900; in the other steps recording was off" in notes
    one, other = steps_of_each_rank(analyze(loaded))
    edge = min(ring_begins(one), ring_begins(other))
    assert [sync for sync in one if sync < edge] == [sync for sync in other if sync < edge]
    # a rank that waited for a CPU or storage has a few records more, and keeps fewer steps by them
    assert abs(ring_begins(one) - ring_begins(other)) <= 8
    newest = RING_RECORDS // 12  # of 8 records and something
    for kept in (one, other):
        assert set(range(900 - newest, 901)) <= set(kept)
        older = [sync - 1 for sync in kept if sync < 900 - RING_RECORDS // 6]
        assert older == list(range(50, 900 - RING_RECORDS // 6, 50))[: len(older)]
        assert older
    for trace in loaded.ranks:
        assert trace.steps["sync"].tolist() == list(range(11, 901))
