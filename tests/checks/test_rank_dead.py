"""DD901 rank-dead."""

from __future__ import annotations

from ddpdoctor.findings import Confidence
from ddpdoctor.hang.snapshot import DeadRank
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
