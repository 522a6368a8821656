"""What was injected into real ranks comes back: sleeps, collections and a CPU quota."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.analysis.arrivals import LOCAL_PHASES, late_arrivals
from ddpdoctor.analysis.model import LateArrivals, StepRange
from ddpdoctor.events import Flag
from tests.launching import PROGRAMS, ROOT, environment, finish, torchrun
from tests.programs.held_by_quota import CPU_MS
from tests.programs.held_by_quota import STEPS as QUOTA_STEPS
from tests.programs.known_times import LATE_MS, PLACES, STEPS

pytestmark = pytest.mark.job

Floats = npt.NDArray[np.float64]

SETTLE = 2  # steps at the beginning of a range that still wait for what was injected before it
SHARE, LEAST_MS = 0.05, 2.0  # by which a term may differ from the truth
MOST_BESIDE_MS = 10.0  # torch's own code and the recorder's: a third of what is injected
NEXT_STEP = ("between", "gc")  # a step ends at the optimizer: what follows is in the next


@dataclass(frozen=True)
class Trained:
    """A recorded run of `known_times`, and what each rank measured of itself, by step."""

    analysis: Analysis
    truth: list[list[dict[str, int]]]

    @property
    def ranks(self) -> int:
        return len(self.truth)

    @property
    def late_rank(self) -> int:
        return self.ranks // 2

    def true_ms(self, steps: range, rank: int, part: str) -> Floats:
        """What a part of each step really took."""
        shift = 1 if part in NEXT_STEP else 0
        return np.array([self.truth[rank][s - shift].get(part, 0) for s in steps]) / 1e6

    def at_ms(self, steps: range, moment: str = "ready") -> Floats:
        """When each rank came to a moment of its steps; (rank, step)."""
        return np.array([self.true_ms(steps, rank, moment) for rank in range(self.ranks)])

    def measured_ms(self, steps: range, rank: int, *terms: str) -> Floats:
        """What was recorded of each step, the terms added up."""
        table = self.analysis.tables.steps
        own = table[(table["rank"] == rank) & table["step"].between(steps[0], steps[-1])]
        assert own["step"].tolist() == list(steps)
        return own[[f"{term}_ns" for term in terms]].to_numpy().sum(axis=1) / 1e6

    def beside_ms(self, steps: range, rank: int, phase: str) -> Floats:
        """What was recorded of a phase beyond the program's own part: torch's code and ours."""
        return self.measured_ms(steps, rank, phase) - self.true_ms(steps, rank, phase)

    def blocked_beside_ms(self, steps: range, rank: int) -> Floats:
        """Of the time for which DDP held the program up, what is neither wait nor transfer."""
        held_up = self.measured_ms(steps, rank, "wait", "transfer")
        return self.true_ms(steps, rank, "blocked") - held_up

    def late(self, steps: range) -> LateArrivals:
        wanted = StepRange(0, len(steps), steps[0] + 1, steps[-1] + 1)
        return late_arrivals(self.analysis.run, self.analysis.tables, wanted)[self.late_rank]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("truth")
    program = torchrun(PROGRAMS / "known_times.py", str(folder), ranks=request.param)
    done = finish(program, folder, environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    truth = [
        json.loads((folder / f"truth-{rank}.json").read_text()) for rank in range(request.param)
    ]
    return Trained(analyze(load_run(run)), truth)


def steps_of(place: str, batch_norm: bool) -> range:
    first = (PLACES.index(place) + batch_norm * len(PLACES)) * STEPS
    return range(first + SETTLE, first + STEPS)


def assert_near(found: Floats, truth: Floats, queued: Floats | float = 0.0) -> None:
    """In most steps: program and recorder stamp apart, and between lies a loss of the CPU.

    Where that is known to add to what was recorded, `queued` is how long it lasted.
    """
    assert np.median(truth * (1 - SHARE) - found) <= LEAST_MS, (found, truth)
    assert np.median(found - queued - truth * (1 + SHARE)) <= LEAST_MS, (found, truth, queued)


every_place = pytest.mark.parametrize("place", PLACES)
either_model = pytest.mark.parametrize(
    "batch_norm", [False, True], ids=["plain", "buffers broadcast"]
)


@either_model
@every_place
def test_what_a_rank_did_comes_back_in_its_term(
    trained: Trained, place: str, batch_norm: bool
) -> None:
    steps = steps_of(place, batch_norm)
    for rank in range(trained.ranks):
        queued = trained.measured_ms(steps, rank, "run_queue")
        for phase in (phase.label for phase in LOCAL_PHASES):
            usual = np.median(trained.beside_ms(steps_of("none", batch_norm), rank, phase))
            assert abs(usual) <= MOST_BESIDE_MS
            found = trained.measured_ms(steps, rank, phase) - usual
            assert_near(found, trained.true_ms(steps, rank, phase), queued)
        # What the program can see of being held up has DDP's own code and hooks in it, too.
        usual = np.median(trained.blocked_beside_ms(steps_of("none", batch_norm), rank))
        assert -LEAST_MS <= usual <= MOST_BESIDE_MS
        assert abs(np.median(trained.blocked_beside_ms(steps, rank)) - usual) <= LEAST_MS
    if place != "none":
        late_ms = trained.measured_ms(steps, trained.late_rank, place)
        assert np.median(late_ms) >= (LATE_MS if place != "gc" else 2.0)


@every_place
def test_victims_wait_for_as_long_as_the_last_rank_is_late(trained: Trained, place: str) -> None:
    steps = steps_of(place, batch_norm=False)
    ready = trained.at_ms(steps)
    for rank in range(trained.ranks):
        assert_near(trained.measured_ms(steps, rank, "wait"), ready.max(axis=0) - ready[rank])


@every_place
def test_with_buffers_victims_wait_in_the_forward_and_the_rest_in_the_backward(
    trained: Trained, place: str
) -> None:
    steps = steps_of(place, batch_norm=True)
    ready = trained.at_ms(steps)
    for rank in range(trained.ranks):
        waited = trained.measured_ms(steps, rank, "wait")
        blocked = trained.true_ms(steps, rank, "blocked")
        assert np.median(ready.max(axis=0) - ready[rank] - waited) <= LEAST_MS
        assert np.median(waited - blocked) <= LEAST_MS


@either_model
@every_place
def test_the_delay_is_put_to_the_rank_and_the_phase_that_caused_it(
    trained: Trained, place: str, batch_norm: bool
) -> None:
    """The step's longest delay counts: at its first bucket, early in the backward, or its last.

    Where buffers are broadcast, who waited in the forward comes late to these as well.
    """
    steps = steps_of(place, batch_norm)
    late = trained.late(steps)
    moments = [trained.at_ms(steps, moment) for moment in ("backward began", "ready")]
    caused = np.array([(last := np.sort(at, axis=0))[-1] - last[-2] for at in moments])
    was_last = np.array([at.argmax(axis=0) == trained.late_rank for at in moments])
    longest = caused.argmax(axis=0), np.arange(len(steps))
    if not batch_norm:
        truth = np.median(np.where(was_last[longest], caused[longest], 0.0))
        assert late.typical_delay_ms == pytest.approx(truth, abs=SHARE * truth + LEAST_MS)
    if place != "none" and was_last[longest].mean() >= 0.75:
        assert late.last_share >= 0.5
        assert late.excesses[0].phase.label == ("between" if place == "gc" else place)


def test_a_collection_is_of_the_phase_that_it_falls_into(trained: Trained) -> None:
    steps = steps_of("gc", False)
    for rank in range(trained.ranks):
        truth = trained.true_ms(steps, rank, "gc")
        assert trained.measured_ms(steps, rank, "gc") == pytest.approx(truth, rel=0.05, abs=0.1)
    pauses = trained.analysis.tables.pauses
    assert set(pauses["rank"]) == {trained.late_rank}
    assert set(pauses["generation"]) == {2}
    assert len(pauses) == 2 * STEPS - 1  # the last comes after the last step
    longest = (pauses["end_ns"] - pauses["begin_ns"]).median() / 1e6
    usual = np.median(trained.true_ms(steps, trained.late_rank, "gc"))
    assert longest == pytest.approx(usual, rel=0.5)


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
    """Around loading and the forward; with buffers broadcast, victims wait within it.

    What lies between the two counts as between, and may be long where another process runs.
    """
    (named,) = trained.analysis.named
    assert named.name == "forward, as the user sees it"
    late = trained.analysis.ranks[trained.late_rank].times
    assert late is not None
    inside = late.input_ms + late.forward_ms
    most = inside + late.wait_ms + late.transfer_ms + late.between_ms
    assert inside <= named.ms_by_rank[trained.late_rank] <= most


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
    done = finish(program, tmp_path, environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    steps = analyze(load_run(run)).tables.steps
    free, held = (steps[steps["rank"] == rank] for rank in range(2))

    truth = json.loads((tmp_path / "lacked-1.json").read_text())
    assert truth["lacked_ms"] > 2 * QUOTA_STEPS * CPU_MS  # a fifth of a CPU: it lacks four times
    queued_ms = held["run_queue_ns"].sum() / 1e6
    assert 0.9 * truth["lacked_ms"] <= queued_ms <= truth["off_cpu_ms"]
    # Most of what the thread lacked; the group's count has its other threads' waiting, too.
    throttled_ms = held["throttled_ns"].sum() / 1e6
    assert 0.5 * truth["lacked_ms"] <= throttled_ms <= 1.25 * truth["throttled_ms"]
    assert (held["throttled_ns"] <= held["run_queue_ns"]).all()
    assert (free["throttled_ns"] == 0).all()
