"""DD901 rank-dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import End, EndKind, Phase
from ddpdoctor.findings import Confidence, Finding
from ddpdoctor.hang.snapshot import DeadRank
from ddpdoctor.laststacks import LastStacks
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import LINE, MS, START_NS, StepTimes, result_of, simulate, with_ranks
from tests.hang_builders import ALL_REDUCE, BUSY, at, codes, only_finding, snapshot, user


def waiting(number: int, **facts):
    return at(number, *ALL_REDUCE, user(30), **facts)


def test_a_killed_rank_is_named_with_its_signal() -> None:
    dead = DeadRank(1, 4711, signal=9, exit_status=0)

    code, finding = only_finding(snapshot(waiting(0), waiting(2), dead=(dead,)))

    assert code == "DD901"
    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (1,)
    assert finding.victims == (0, 2)
    assert "SIGKILL" in finding.message
    assert "oom_kill" in finding.fix


def test_a_killed_rank_is_reported_while_the_others_still_compute() -> None:
    seen = snapshot(waiting(0, movement=BUSY), dead=(DeadRank(1, 4711, signal=11),))

    assert codes(seen) == ["DD901"]


def test_a_rank_that_failed_is_named_and_one_that_ended_well_is_not() -> None:
    dead = (DeadRank(1, 11, exit_status=1), DeadRank(2))

    _, finding = only_finding(snapshot(waiting(0), dead=dead))

    assert finding.culprits == (1,)
    assert "exit status 1" in finding.message


def test_a_rank_that_is_gone_for_an_unknown_reason_is_only_likely_the_cause() -> None:
    code, finding = only_finding(snapshot(waiting(0), dead=(DeadRank(1),)))

    assert (code, finding.confidence) == ("DD901", Confidence.LIKELY)


def test_a_dead_rank_without_a_number_names_no_rank() -> None:
    _, finding = only_finding(snapshot(waiting(0), waiting(2), dead=(DeadRank(None, 7, 9),)))

    assert finding.culprits == ()
    assert finding.confidence is Confidence.LIKELY


def test_a_job_whose_ranks_end_one_after_another_has_no_dead_rank() -> None:
    seen = snapshot(waiting(0, movement=BUSY), dead=(DeadRank(1),))

    assert codes(seen) == ["DD906"]


def test_a_rank_that_ends_while_looked_at_is_no_dead_rank() -> None:
    assert codes(snapshot(waiting(0), ended=(1,), world_size=2)) == ["DD906"]


CLOSED = "[../third_party/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:3461"
TIMED_OUT = "[..] Timed out waiting 30000ms for recv operation to complete"


def raised(error: str, message: str, at_ms: float = 0, line: Phase = Phase.FORWARD) -> End:
    at_ns = START_NS + int(at_ms * MS)
    return End(EndKind.EXCEPTION, at_ns, 17, Phase.FORWARD, error, message, LINE[line])


def ended(kind: EndKind, at_ms: float = 0, status: int = 0) -> End:
    return End(kind, START_NS + int(at_ms * MS), 17, Phase.BETWEEN, status=status)


SILENT, TERMINATED, HUNG_UP = None, "SIGTERM", "SIGHUP"


def run_with(*ends: End | str | None) -> Run:
    """A run whose ranks ended so: noted, without a word, or by SIGTERM."""

    def change(trace: RankTrace) -> RankTrace:
        end = ends[trace.info.rank]
        if isinstance(end, End):
            return replace(trace, end=end)
        stacks = LastStacks(() if end == TERMINATED else None, (), () if end == HUNG_UP else None)
        return replace(trace, closed=False, last_stacks=stacks)

    return with_ranks(simulate(lambda rank, step: StepTimes(), len(ends)), change)


def found(run: Run) -> Finding:
    (finding,) = result_of("DD901", run).findings
    return finding


def test_the_first_to_raise_is_the_cause_and_the_others_follow() -> None:
    run = run_with(
        raised("RuntimeError", CLOSED, 12), TERMINATED, raised("ValueError", "no label 11", 10)
    )

    finding = found(run)

    assert (finding.culprits, finding.victims) == ((2,), (0, 1))
    assert finding.message == (
        "rank 2 ended with ValueError at train.py:21 in step 18, and ranks 0 and 1 failed for it"
    )
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where[0].rank == 2


@pytest.mark.parametrize(
    ("error", "message", "called", "shared_file"),
    [
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'runs/7'", "", True),
        ("RuntimeError", "PytorchStreamReader failed reading zip archive: no directory", "", True),
        ("EOFError", "Ran out of input", "", True),
        ("OSError", "[Errno 22] Invalid argument", "torch.serialization.load", True),
        ("OSError", "[Errno 28] No space left on device", "torch.serialization.save", False),
        ("ValueError", "no label 11", "torch.nn.functional.cross_entropy", False),
    ],
)
def test_a_file_that_another_rank_makes_is_to_be_waited_for(
    error: str, message: str, called: str, shared_file: bool
) -> None:
    end = replace(raised(error, message, 10), called=called)
    fix = found(run_with(raised("RuntimeError", CLOSED, 12), end)).fix

    assert ("barrier()" in fix) == shared_file


def test_one_that_lost_its_peer_is_no_cause_even_where_it_noted_it_first() -> None:
    """A rank that is slow to print its traceback notes its end late."""
    run = run_with(raised("RuntimeError", CLOSED, 5), raised("ValueError", "no label 11", 10))

    assert found(run).culprits == (1,)


def test_words_like_torchs_in_the_scripts_own_error_do_not_excuse_it() -> None:
    run = run_with(
        raised("ConnectionError", "Connection reset by peer", 10),
        raised("RuntimeError", CLOSED, 12),
    )

    assert found(run).culprits == (0,)


def test_an_error_that_all_have_blames_all() -> None:
    error = raised("ValueError", "no label 11", 10)

    finding = found(run_with(error, replace(error, at_ns=error.at_ns + MS)))

    assert (finding.culprits, finding.victims) == ((0, 1), ())


def test_of_two_errors_the_first_by_the_common_clock_counts() -> None:
    """Rank 1's own clock is far ahead, which its offset makes good."""
    run = run_with(raised("ValueError", "first", 10), raised("KeyError", "second", 11))
    ahead_ns = 10**12

    def on_another_host(trace: RankTrace) -> RankTrace:
        if trace.info.rank == 0 or trace.end is None:
            return trace
        info = replace(
            trace.info, clock_id="other", wall_minus_monotonic_ns=-ahead_ns,
            began_ns=trace.info.began_ns + ahead_ns,
        )  # fmt: skip
        detail = trace.detail.copy()
        for name in ("begin_ns", "end_ns"):
            detail[name] += ahead_ns
        end = replace(trace.end, at_ns=trace.end.at_ns + ahead_ns - 5 * MS)
        return replace(trace, info=info, detail=detail, end=end)

    assert found(with_ranks(run, on_another_host)).culprits == (1,)


def test_an_exit_with_a_status_is_a_failure() -> None:
    run = run_with(ended(EndKind.EXIT, 10, status=3), raised("RuntimeError", CLOSED, 12))

    assert "ended with sys.exit(3)" in found(run).message


def test_who_goes_without_a_word_is_the_likely_cause_of_lost_connections() -> None:
    run = run_with(raised("RuntimeError", CLOSED, 12), SILENT, TERMINATED)

    finding = found(run)

    assert (finding.culprits, finding.victims) == ((1,), (0, 2))
    assert finding.confidence is Confidence.LIKELY
    assert "oom" in finding.fix


def test_who_leaves_before_the_others_is_the_likely_cause() -> None:
    run = run_with(raised("RuntimeError", CLOSED, 12), ended(EndKind.RETURNED, 8))

    finding = found(run)

    assert finding.culprits == (1,)
    assert "came to the end of the script" in finding.message
    assert "equally many batches" in finding.fix


@pytest.mark.parametrize(
    "ends",
    [
        (ended(EndKind.RETURNED, 8), ended(EndKind.RETURNED, 12)),
        (ended(EndKind.EXIT, 8), ended(EndKind.RETURNED, 12)),
        (TERMINATED, TERMINATED),
        (SILENT, ended(EndKind.RETURNED)),
        (raised("KeyboardInterrupt", ""), raised("KeyboardInterrupt", "")),
        (raised("RuntimeError", TIMED_OUT), TERMINATED),  # DD913's matter
    ],
    ids=range(6),
)
def test_ends_that_tell_of_no_fault(ends: tuple[End | str | None, ...]) -> None:
    assert result_of("DD901", run_with(*ends)).outcome is Outcome.CLEAN


def test_without_any_word_nothing_is_known() -> None:
    """Killed all at once, still running, or recorded by an older version."""
    assert result_of("DD901", run_with(SILENT, SILENT)).outcome is Outcome.SKIPPED


def test_a_handler_of_the_scripts_that_ends_it_at_sigterm_is_no_failure() -> None:
    run = run_with(ended(EndKind.EXIT, 10, status=5), ended(EndKind.RETURNED, 12))
    run = with_ranks(run, lambda trace: replace(trace, last_stacks=LastStacks(())))

    assert result_of("DD901", run).outcome is Outcome.CLEAN


@pytest.mark.parametrize("other", [HUNG_UP, raised("RuntimeError", CLOSED, 12), TERMINATED])
def test_a_terminal_that_was_closed_is_no_ranks_fault(other: End | str) -> None:
    finding = found(run_with(HUNG_UP, other))

    assert (finding.culprits, finding.victims) == ((), (0, 1))
    assert finding.message.startswith("SIGHUP ended rank")
    assert "tmux" in finding.fix


def test_what_a_rank_raised_before_the_terminal_was_closed_is_the_cause() -> None:
    assert found(run_with(raised("ValueError", "no label 11", 10), HUNG_UP)).culprits == (0,)


def test_a_script_that_handles_sighup_and_goes_on_is_clean() -> None:
    """As one that saves its state when the scheduler says by SIGHUP that time is up."""
    run = run_with(ended(EndKind.RETURNED, 8), ended(EndKind.EXIT, 8))
    run = with_ranks(run, lambda trace: replace(trace, last_stacks=LastStacks(None, (), ())))

    assert result_of("DD901", run).outcome is Outcome.CLEAN


def test_a_rank_whose_recording_stopped_is_not_called_silent() -> None:
    run = run_with(raised("RuntimeError", CLOSED, 12), SILENT)
    run = with_ranks(
        run, lambda t: replace(t, stopped="OSError: no space") if t.info.rank == 1 else t
    )

    assert result_of("DD901", run).outcome is Outcome.CLEAN
