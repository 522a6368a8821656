"""Fifty ranges of steps in one job, in each of which a plan makes one rank late: all are found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis import Analysis
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.waiting import waiting_in
from ddpdoctor.analysis.waitmodel import Waiting, WaitKind
from tests.launching import PROGRAMS, ROOT, environment, finish, torchrun
from tests.programs.late_by_plan import RANGES, SETTLE, STEPS, WARMUP, Range, plan

pytestmark = pytest.mark.job

RANKS = 4
LATE = (WaitKind.LATE, WaitKind.RANK_0)  # rank 0 between its steps has a code of its own
OF_THE_MACHINE = (WaitKind.QUEUE, WaitKind.PAUSES)  # said beside a late rank where it is busy
ORIGINS_NAMED = 45  # of 50; where the machine is busy, one that is spread over phases is not named


@dataclass(frozen=True)
class Judged:
    """A range of the plan, and the dearest cause that the analysis finds in its steps."""

    planned: Range
    found: Waiting | None

    @property
    def rank_is_right(self) -> bool:
        found = self.found
        return found is not None and found.kind in LATE and found.ranks == (self.planned.rank,)

    @property
    def named(self) -> str | None:
        lateness = self.found.lateness if self.found else None
        if lateness is None or lateness.excesses[0].coverage < 0.8:
            return None
        return lateness.excesses[0].phase.label


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    folder = tmp_path_factory.mktemp("plan")
    program = torchrun(PROGRAMS / "late_by_plan.py", ranks=RANKS)
    done = finish(program, folder, environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0"))
    assert done.status == 0, done.err
    return judge(folder)


def judge(folder: Path) -> list[Judged]:
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    analysis = analyze(load_run(run))
    return [Judged(each, dearest(analysis, index)) for index, each in enumerate(plan(RANKS))]


def dearest(analysis: Analysis, index: int) -> Waiting | None:
    """Of what ranks do in one range, as if it were all that was recorded."""
    first = WARMUP + index * STEPS + SETTLE + 1
    window = StepRange(0, STEPS - SETTLE, first, first + STEPS - SETTLE - 1)
    found = waiting_in(analysis.run, analysis.tables, window, analysis.step_ms or 0.0)
    return next((waiting for waiting in found if waiting.kind not in OF_THE_MACHINE), None)


def test_the_culprit_is_right_each_time(judged: list[Judged]) -> None:
    wrong = [each for each in judged if not each.rank_is_right]
    assert len(judged) == RANGES
    assert not wrong, wrong


def test_no_origin_is_wrong_and_nearly_all_are_named(judged: list[Judged]) -> None:
    named = Counter(each.named == each.planned.place for each in judged if each.named)
    assert named[False] == 0
    assert named[True] >= ORIGINS_NAMED
