"""A record of a job that was killed, judged by what its ranks noted when they stood still."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.analysis import analyze
from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.checks import Outcome, run_checks
from ddpdoctor.diagnose import diagnosis_of_run
from ddpdoctor.events import GoneRank, GroupInfo, Kind, Phase, Stall
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.report import run_report
from ddpdoctor.stackframes import Frame
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, result_of, simulate, with_ranks
from tests.hang_builders import (
    ALL_REDUCE,
    BACKWARD,
    BARRIER,
    NEXT_BATCH,
    torch,
    user,
)

IN_LOOP = (*BACKWARD, user(30, "loss.backward()"))
BEHIND = (*BARRIER, user(50, "dist.barrier()"))
SLEEPS = (user(12, "time.sleep(1)"),)


def left_by(
    *stacks: tuple[Frame, ...], gone: dict[int, GoneRank] | None = None, pending: bool = True
) -> Run:
    """Ranks that stood at these lines when the job was killed; () is a rank without a note."""

    def end(trace: RankTrace) -> RankTrace:
        rank = trace.info.rank
        detail = trace.detail.copy()
        last = (detail["kind"] == Kind.COLLECTIVE) & (detail["seq"] == detail["seq"].max())
        if pending:
            detail["end_ns"] = np.where(last, 0, detail["end_ns"])
        seen = tuple(gone.values()) if gone else ()
        note = Stall(Phase.BLOCKED, None, 5.0 + rank, stack=stacks[rank], gone=seen)
        return replace(trace, detail=detail, closed=False, stall=note if stacks[rank] else None)

    return with_ranks(simulate(lambda r, s: StepTimes(), len(stacks), 5), end)


def hang_findings(run: Run) -> list[tuple[str, Finding]]:
    """What `diagnose RUN` says."""
    analysis = analyze(run)
    results = run_checks(analysis)
    assert not [result.reason for result in results if result.outcome is Outcome.CRASH]
    report = diagnosis_of_run(run_report(analysis, results)).report
    return [(result.code, finding) for result, finding in report.findings]


def only(run: Run) -> tuple[str, Finding]:
    (found,) = hang_findings(run)
    return found


def test_a_rank_that_had_left_the_loop() -> None:
    code, finding = only(left_by(IN_LOOP, BEHIND, IN_LOOP))

    assert code == "DD902"
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert (finding.culprits, finding.victims) == ((1,), (0, 2))
    assert [place.line for place in finding.where] == [50]
    assert ("watched without any progress", 5.0) in [(e.what, e.value) for e in finding.evidence]
    assert "pid" not in str(finding.evidence)  # the processes are gone


def test_what_is_certain_while_it_hangs_is_likely_in_the_record() -> None:
    """Here the takedown of the group, which no rank does within the loop."""
    leaves = (torch("distributed/distributed_c10d.py", "destroy_process_group"), user(70))

    _, finding = only(left_by(IN_LOOP, leaves))

    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    ("stack", "code"),
    [(SLEEPS, "DD903"), ((*BARRIER, user(35)), "DD904"), ((*NEXT_BATCH, user(22)), "DD907")],
)
def test_the_other_kinds(stack: tuple[Frame, ...], code: str) -> None:
    said, finding = only(left_by(IN_LOOP, stack, IN_LOOP))

    assert (said, finding.culprits) == (code, (1,))


def test_all_in_one_call() -> None:
    code, finding = only(left_by(IN_LOOP, IN_LOOP))

    assert (code, finding.culprits) == ("DD908", ())


def test_a_rank_that_went_on_says_that_the_others_may_wait_for_it() -> None:
    """It noted nothing, since it computed: where it was is not known."""
    run = left_by(IN_LOOP, ())

    assert result_of("DD902", run).outcome is Outcome.SKIPPED
    assert [code for code, _ in hang_findings(run)] == []


def test_a_record_of_an_older_version_has_no_stacks() -> None:
    def without(trace: RankTrace) -> RankTrace:
        assert trace.stall is not None
        return replace(trace, stall=replace(trace.stall, stack=()))

    run = with_ranks(left_by(IN_LOOP, BEHIND), without)

    assert result_of("DD902", run).outcome is Outcome.SKIPPED


def test_a_job_that_ended_well_is_clean() -> None:
    run = simulate(lambda r, s: StepTimes(), 2, 5)

    for code in ("DD902", "DD903", "DD907", "DD908", "DD911"):
        assert result_of(code, run).outcome is Outcome.CLEAN


KILLED = {1: GoneRank(1, 4711, signal=9)}


def test_a_rank_that_another_one_saw_to_be_gone() -> None:
    code, finding = only(left_by(SLEEPS, (), SLEEPS, gone=KILLED, pending=False))

    assert code == "DD901"
    assert (finding.culprits, finding.victims) == ((1,), (0, 2))
    assert "SIGKILL" in finding.message
    assert "memory" not in finding.message


def test_it_was_killed_for_memory() -> None:
    def beside(trace: RankTrace) -> RankTrace:
        kills = (MemoryKills("/slurm/job_7", 1),)
        note = trace.stall and replace(trace.stall, memory_kills=kills)
        return replace(trace, stall=note)

    run = with_ranks(left_by(SLEEPS, (), SLEEPS, gone=KILLED, pending=False), beside)
    _, finding = only(run)

    assert "memory ran out" in finding.message
    assert "more memory" in finding.fix
    assert "/slurm/job_7" in str(finding.evidence)


def test_a_rank_of_another_host_is_not_seen() -> None:
    """Its number of a process means nothing here."""

    def elsewhere(trace: RankTrace) -> RankTrace:
        return replace(trace, info=replace(trace.info, host=f"node{trace.info.rank}"))

    run = with_ranks(left_by(SLEEPS, (), gone=KILLED, pending=False), elsewhere)

    assert hang_findings(run) == []


def test_a_rank_that_ended_by_itself_is_told_by_its_own_note() -> None:
    """Another one may have seen it go; that it closed its record says that it went in peace."""
    run = left_by(SLEEPS, (), gone=KILLED, pending=False)
    run = with_ranks(run, lambda t: replace(t, closed=True) if t.info.rank == 1 else t)

    assert hang_findings(run) == []


def test_a_group_that_only_some_ranks_made() -> None:
    members = {0: (0, 1), 1: (0, 1), 2: (0, 1, 2)}

    def grouped(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        detail["end_ns"] = np.where(detail["kind"] == Kind.COLLECTIVE, 1, detail["end_ns"])
        detail["group"] = np.where(
            detail["commit"] == detail["commit"][detail["kind"] == Kind.COLLECTIVE].max(), 1, 0
        )
        groups = (*trace.groups, GroupInfo("1", members[trace.info.rank]))
        return replace(trace, detail=detail, groups=groups)

    makes = (torch("distributed/distributed_c10d.py", "new_group"), user(22))
    run = left_by(makes, makes, (*ALL_REDUCE, user(23)), pending=False)
    code, finding = only(with_ranks(run, grouped))

    assert (code, finding.culprits) == ("DD911", ())
    assert "group 1 is ranks 0 and 1 to ranks 0 and 1, and ranks 0, 1 and 2 to rank 2" in (
        finding.message
    )
