"""Fifty ranges of steps in one job, in each of which a plan makes one rank late: all are found."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.stepwise import stepwise
from ddpdoctor.analysis.waiting import waiting_in
from ddpdoctor.analysis.waitmodel import ORIGIN_COVERS, Waiting, WaitKind
from tests.launching import PROGRAMS, ROOT, environment, finish, torchrun
from tests.programs.late_by_plan import RANGES, SETTLE, STEPS, WARMUP, Range, plan

pytestmark = [pytest.mark.job, pytest.mark.long]

RANKS = 4
LATE = (WaitKind.LATE, WaitKind.RANK_0)  # rank 0 between its steps has a code of its own
OF_THE_MACHINE = (WaitKind.QUEUE, WaitKind.PAUSES)  # said beside a late rank where it is busy
DISTURBED = 0.1  # of a step some rank waits for a CPU: then other ranks are late as well
FEWEST_QUIET = 25  # ranges, to say anything of


@dataclass(frozen=True)
class Judged:
    """A range of the plan, and the dearest cause that the analysis finds in its steps."""

    planned: Range
    found: Waiting | None
    is_disturbed: bool

    @property
    def rank_is_right(self) -> bool:
        found = self.found
        return found is not None and found.kind in LATE and found.ranks == (self.planned.rank,)

    @property
    def named(self) -> str | None:
        lateness = self.found.lateness if self.found else None
        if lateness is None or lateness.excesses[0].coverage < ORIGIN_COVERS:
            return None
        return lateness.excesses[0].phase.label


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    folder = tmp_path_factory.mktemp("plan")
    program = torchrun(PROGRAMS / "late_by_plan.py", ranks=RANKS)
    done = finish(program, folder, environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    analysis = analyze(load_run(run))
    return [judge(analysis, index, each) for index, each in enumerate(plan(RANKS))]


def judge(analysis: Analysis, index: int, planned: Range) -> Judged:
    """One range, as if it were all that was recorded."""
    first = WARMUP + index * STEPS + SETTLE + 1
    window = StepRange(0, STEPS - SETTLE, first, first + STEPS - SETTLE - 1)
    found = waiting_in(analysis.run, analysis.tables, window, analysis.step_ms or 0.0)
    of_ranks = [waiting for waiting in found if waiting.kind not in OF_THE_MACHINE]
    steps = stepwise(analysis.tables, window)
    queued = steps.queued_ms.mean(axis=1).max() / steps.step_ms.mean()
    return Judged(planned, of_ranks[0] if of_ranks else None, bool(queued >= DISTURBED))


def test_the_culprit_is_right_in_each_range_that_nobody_disturbed(judged: list[Judged]) -> None:
    quiet = [each for each in judged if not each.is_disturbed]
    if len(quiet) < FEWEST_QUIET:
        pytest.skip(f"the machine was busy: {len(quiet)} of {RANGES} ranges were undisturbed")
    assert [each for each in quiet if not each.rank_is_right] == []


def test_no_other_rank_is_blamed_however_busy_the_machine_is(judged: list[Judged]) -> None:
    assert len(judged) == RANGES
    blamed = [each for each in judged if each.found is not None and each.found.ranks]
    assert [each for each in blamed if each.found.ranks != (each.planned.rank,)] == []
    assert len(blamed) >= RANGES // 2


def test_no_origin_is_wrong(judged: list[Judged]) -> None:
    named = [each for each in judged if each.rank_is_right and each.named is not None]
    assert [each for each in named if each.named != each.planned.place] == []
