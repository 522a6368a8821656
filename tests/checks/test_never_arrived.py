"""DD913 never-arrived."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import End, EndKind, Kind, Phase, Stall
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.laststacks import LastStacks
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import LINE, START_NS, StepTimes, result_of, simulate, with_ranks


def stopped_at(run: Run, missing: int, *, stalled: bool) -> Run:
    """Nobody closed; one rank never issued the last collective, and the others stand in it."""
    last = max(trace.detail["seq"].max() for trace in run.ranks)

    def cut(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        is_last = (detail["kind"] == Kind.COLLECTIVE) & (detail["seq"] == last)
        if trace.info.rank == missing:
            detail = detail[~is_last]
        else:
            detail["end_ns"] = np.where(is_last, 0, detail["end_ns"])
        phase = Phase.BETWEEN if trace.info.rank == missing else Phase.BLOCKED
        stall = Stall(phase, LINE[phase], 5.0) if stalled else None
        return replace(trace, detail=detail, closed=False, stall=stall)

    return with_ranks(run, cut)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_hang_names_the_rank_that_did_not_come_and_its_line(missing: int) -> None:
    run = stopped_at(simulate(lambda r, s: StepTimes(), 3), missing, stalled=True)

    (finding,) = result_of("DD913", run).findings

    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (missing,)
    assert finding.victims == tuple(rank for rank in range(3) if rank != missing)
    assert finding.where[0].line == LINE[Phase.BETWEEN].line


def test_a_job_that_was_killed_in_mid_step_is_only_info() -> None:
    run = stopped_at(simulate(lambda r, s: StepTimes(), 3), 1, stalled=False)

    (finding,) = result_of("DD913", run).findings

    assert finding.severity is Severity.INFO
    assert "killed in mid-step" in finding.fix


def test_a_run_that_ended_is_clean() -> None:
    assert result_of("DD913", simulate(lambda r, s: StepTimes(), 3)).outcome is Outcome.CLEAN


def test_with_a_rank_file_missing_nobody_is_blamed() -> None:
    run = stopped_at(simulate(lambda r, s: StepTimes(), 3), 1, stalled=True)

    result = result_of("DD913", replace(run, ranks=(run.ranks[0], run.ranks[2])))

    assert result.outcome is Outcome.SKIPPED


def test_where_the_gil_was_kept_the_stack_written_in_c_tells_the_line() -> None:
    run = stopped_at(simulate(lambda r, s: StepTimes(), 3), 1, stalled=True)
    stacks = LastStacks(stuck=((LINE[Phase.OPTIMIZER],),))
    run = with_ranks(
        run, lambda t: replace(t, stall=None, last_stacks=stacks) if t.info.rank == 1 else t
    )

    (finding,) = result_of("DD913", run).findings

    assert finding.where[0].line == LINE[Phase.OPTIMIZER].line


@pytest.mark.parametrize("also_waiting", [False, True])
def test_who_is_waited_for_until_the_timeout_is_named(also_waiting: bool) -> None:
    """Rank 2, which SIGTERM finds in the same collective as rank 0, is none of the missing."""
    run = stopped_at(simulate(lambda r, s: StepTimes(), 3 if also_waiting else 2), 1, stalled=False)
    error = "[..] Timed out waiting 30000ms for recv operation to complete"
    end = End(EndKind.EXCEPTION, START_NS, 9, Phase.BLOCKED, "RuntimeError", error)

    def change(trace: RankTrace) -> RankTrace:
        if trace.info.rank == 0:
            return replace(trace, end=end, closed=True)
        return replace(trace, last_stacks=LastStacks((LINE[Phase.BETWEEN],)))

    (finding,) = result_of("DD913", with_ranks(run, change)).findings

    assert (finding.culprits, finding.victims) == ((1,), (0,))
    assert finding.severity is Severity.ERROR
    assert "waited in a collective until its timeout" in finding.message
