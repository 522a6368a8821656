"""DD908 transport-stalled."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from tests.hang_builders import (
    ALL_REDUCE,
    BUSY,
    at,
    in_record,
    only_finding,
    results,
    snapshot,
    user,
)


def waiting(number: int, **facts):
    return at(number, *ALL_REDUCE, user(30, "dist.all_reduce(x)"), **facts)


def test_all_ranks_in_one_call_is_possible_without_records() -> None:
    code, finding = only_finding(snapshot(waiting(0), waiting(1)))

    assert (code, finding.confidence) == ("DD908", Confidence.POSSIBLE)
    assert finding.culprits == ()
    assert finding.victims == (0, 1)
    assert "ddpdoctor run" in finding.fix


def test_records_that_agree_make_it_likely() -> None:
    _, finding = only_finding(snapshot(*(waiting(r, collectives=in_record(7)) for r in (0, 1))))

    assert finding.confidence is Confidence.LIKELY
    assert "transport" in finding.message


def test_records_that_differ_say_so() -> None:
    ranks = [waiting(0, collectives=in_record(7)), waiting(1, collectives=in_record(8))]

    _, finding = only_finding(snapshot(*ranks))

    assert finding.confidence is Confidence.POSSIBLE
    assert "different collectives of the same line" in finding.message


def test_a_key_that_nobody_sets() -> None:
    ranks = [at(r, user(9, 'store.get("x")'), wchan="poll") for r in (0, 1)]

    _, finding = only_finding(snapshot(*ranks))

    assert "key that nobody sets" in finding.message


def test_with_ranks_on_other_hosts_there_is_no_verdict() -> None:
    said = results(snapshot(waiting(0), waiting(1), world_size=4))

    assert said["DD908"].outcome is Outcome.SKIPPED
    assert "2 more ranks" in (said["DD908"].reason or "")


def test_gpus_that_may_be_computing_are_no_verdict() -> None:
    spinning = [waiting(r, movement=replace(BUSY), on_gpu=True) for r in (0, 1)]

    assert results(snapshot(*spinning))["DD908"].outcome is Outcome.SKIPPED
