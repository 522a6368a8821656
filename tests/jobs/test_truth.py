"""What was injected into real ranks comes back: sleeps, collections and a CPU quota."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.analysis.arrivals import LOCAL_PHASES, late_arrivals
from ddpdoctor.analysis.model import LateArrivals, StepRange
from ddpdoctor.events import Flag
from tests.launching import PROGRAMS, environment, finish, torchrun
from tests.programs.held_by_quota import CPU_MS
from tests.programs.held_by_quota import STEPS as QUOTA_STEPS
from tests.programs.known_times import PLACES, STEPS

pytestmark = pytest.mark.job

SETTLE = 2  # steps at the beginning of a range that still wait for what was injected before it
SHARE, LEAST_MS = 0.05, 2.0  # by which a term may differ from the truth
MOST_QUEUED_MS = 10.0  # of the excuse that ranks had no CPU: far below what is injected
NEXT_STEP = ("between", "gc")  # a step ends at the optimizer: what follows is in the next


@dataclass(frozen=True)
class Trained:
    """A recorded run of `known_times`, and what each rank measured of itself, by step."""

    analysis: Analysis
    slept: list[list[dict[str, int]]]

    @property
    def ranks(self) -> int:
        return len(self.slept)

    @property
    def late_rank(self) -> int:
        return self.ranks // 2

    def slept_ms(self, steps: range, rank: int, place: str) -> float:
        """Milliseconds that a rank really spent in a place, median of these steps."""
        shift = 1 if place in NEXT_STEP else 0
        return float(np.median([self.slept[rank][s - shift].get(place, 0) for s in steps])) / 1e6

    def measured_ms(self, steps: range, rank: int) -> pd.Series:
        """Milliseconds in each column of the step table, median of these steps."""
        table = self.analysis.tables.steps
        own = table[(table["rank"] == rank) & table["step"].between(steps[0], steps[-1])]
        assert len(own) == len(steps)
        return own.median() / 1e6

    def late(self, steps: range) -> dict[int, LateArrivals]:
        wanted = StepRange(0, len(steps), steps[0] + 1, steps[-1] + 1)
        return late_arrivals(self.analysis.run, self.analysis.tables, wanted)


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("truth")
    program = torchrun(PROGRAMS / "known_times.py", str(folder), ranks=request.param)
    done = finish(program, folder, environment(PYTHONPATH=path(), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    slept = [
        json.loads((folder / f"slept-{rank}.json").read_text()) for rank in range(request.param)
    ]
    return Trained(analyze(load_run(run)), slept)


def path() -> str:
    return os.environ.get("PYTHONPATH", "")


def steps_of(place: str, batch_norm: bool) -> range:
    first = (PLACES.index(place) + batch_norm * len(PLACES)) * STEPS
    return range(first + SETTLE, first + STEPS)


def near(expected: float, queued_ms: float = 0.0) -> object:
    """Other work on the machine may take the CPU from a rank; that is measured, too."""
    return pytest.approx(
        expected, abs=max(SHARE * expected, LEAST_MS) + min(queued_ms, MOST_QUEUED_MS)
    )


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "buffers broadcast"])
@pytest.mark.parametrize("place", PLACES)
def test_every_rank_spent_in_each_phase_what_it_slept_there(
    trained: Trained, place: str, batch_norm: bool
) -> None:
    steps = steps_of(place, batch_norm)
    for rank in range(trained.ranks):
        measured = trained.measured_ms(steps, rank)
        for phase in LOCAL_PHASES:
            truth = trained.slept_ms(steps, rank, phase.label)
            found = measured[f"{phase.label}_ns"]
            assert found == near(truth, measured["run_queue_ns"]), (rank, phase)


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "buffers broadcast"])
@pytest.mark.parametrize("place", PLACES)
def test_the_others_wait_for_as_long_as_one_rank_is_late(
    trained: Trained, place: str, batch_norm: bool
) -> None:
    steps = steps_of(place, batch_norm)
    late = trained.late(steps)
    busy = [
        sum(trained.slept_ms(steps, rank, phase.label) for phase in LOCAL_PHASES)
        for rank in range(trained.ranks)
    ]
    # Each rank's delays hold up all others, at the buffers and again at the gradients.
    queued = sum(trained.measured_ms(steps, r)["run_queue_ns"] for r in range(trained.ranks))
    for rank in range(trained.ranks):
        waited = trained.measured_ms(steps, rank)["wait_ns"]
        assert waited == near(max(busy) - busy[rank], queued), rank
    culprit = late[trained.late_rank]
    others = [busy[rank] for rank in range(trained.ranks) if rank != trained.late_rank]
    caused = max(0.0, busy[trained.late_rank] - max(others))
    assert culprit.typical_delay_ms == near(caused, queued)
    if place != "none":
        assert culprit.last_share >= 0.75
        assert culprit.excesses[0].phase.label == ("between" if place == "gc" else place)
        assert culprit.excesses[0].excess_ms == near(caused, queued)


def test_a_collection_is_of_the_phase_that_it_falls_into(trained: Trained) -> None:
    steps = steps_of("gc", False)
    for rank in range(trained.ranks):
        truth = trained.slept_ms(steps, rank, "gc")
        assert trained.measured_ms(steps, rank)["gc_ns"] == pytest.approx(truth, abs=0.5)
    pauses = trained.analysis.tables.pauses
    assert set(pauses["rank"]) == {trained.late_rank}
    assert set(pauses["generation"]) == {2}
    assert len(pauses) == 2 * STEPS - 1  # the last comes after the last step
    longest = (pauses["end_ns"] - pauses["begin_ns"]).median() / 1e6
    assert longest == pytest.approx(trained.slept_ms(steps, trained.late_rank, "gc"), rel=0.3)


def test_the_terms_of_every_step_add_up(trained: Trained) -> None:
    table = trained.analysis.tables.steps
    terms = ["input", "forward", "backward", "wait", "transfer", "optimizer", "between"]
    assert (table[[f"{term}_ns" for term in terms]].sum(axis=1) == table["step_ns"]).all()
    assert (table["between_ns"] >= 0).all()


def test_the_buckets_of_either_model_are_told_apart(trained: Trained) -> None:
    table = trained.analysis.tables.collectives
    for first in (0, len(PLACES) * STEPS):
        settled = table["step"].between(first + SETTLE, first + len(PLACES) * STEPS - 1)
        buckets = table[settled & ((table["flags"].to_numpy() & Flag.BUCKET) > 0)]
        assert buckets.groupby("bucket")["nbytes"].nunique().to_dict() == {0: 1, 1: 1}


def test_a_named_span_takes_what_its_phases_take(trained: Trained) -> None:
    """Around loading and the forward; with buffers broadcast, victims wait within it."""
    (named,) = trained.analysis.named
    assert named.name == "forward, as the user sees it"
    late = trained.analysis.ranks[trained.late_rank].times
    assert late is not None
    inside = late.input_ms + late.forward_ms
    assert inside <= named.ms_by_rank[trained.late_rank] <= inside + late.wait_ms + late.transfer_ms


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group that may use a fifth of one CPU."""
    group, limit = Path("/sys/fs/cgroup/cpu"), ("cpu.cfs_quota_us", "20000")
    if not group.is_dir():
        group, limit = Path("/sys/fs/cgroup"), ("cpu.max", "20000 100000")
    group /= f"ddpdoctor-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit[0]).write_text(limit[1])
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group with a quota can be made here: {error}")
    yield group
    group.rmdir()


def test_a_cpu_quota_shows_as_throttling_of_the_rank_that_it_holds(
    quota: Path, tmp_path: Path
) -> None:
    program = torchrun(PROGRAMS / "held_by_quota.py", str(quota), str(tmp_path))
    done = finish(program, tmp_path, environment(PYTHONPATH=path(), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    steps = analyze(load_run(run)).tables.steps
    free, held = (steps[steps["rank"] == rank] for rank in range(2))

    truth = json.loads((tmp_path / "lacked-1.json").read_text())
    assert truth["lacked_ms"] > 2 * QUOTA_STEPS * CPU_MS  # a fifth of a CPU: it lacks four times
    queued_ms = held["run_queue_ns"].sum() / 1e6
    assert 0.9 * truth["lacked_ms"] <= queued_ms <= truth["off_cpu_ms"]
    # The group's count has the other threads' waiting, too, and ends a little later.
    assert held["throttled_ns"].sum() / 1e6 == pytest.approx(truth["throttled_ms"], rel=0.25)
    assert (held["throttled_ns"] <= held["run_queue_ns"]).all()
    assert (free["throttled_ns"] == 0).all()
