"""DD911 group-order."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.hang.snapshot import LastCollective
from tests.hang_builders import (
    ALL_REDUCE,
    BARRIER,
    at,
    codes,
    only_finding,
    results,
    snapshot,
    user,
)


def last(group: str, seq: int, *, pending: bool) -> LastCollective:
    return LastCollective(group, (0, 1), seq, "all_reduce", pending)


@pytest.mark.parametrize("line", [30, 32], ids=["one line", "two lines"])
def test_two_ranks_that_wait_for_each_other_in_two_groups(line: int) -> None:
    first = at(0, *ALL_REDUCE, user(30), collectives=(last("a", 3, pending=True),))
    second = at(
        1, *ALL_REDUCE, user(line),
        collectives=(last("a", 2, pending=False), last("b", 0, pending=True)),
    )  # fmt: skip

    code, finding = only_finding(snapshot(first, second))

    assert code == "DD911"
    assert finding.culprits == (0, 1)
    assert "rank 0 waits for rank 1 in all_reduce number 3 of group a" in finding.message


def test_one_group_is_a_mismatch() -> None:
    first = at(0, *ALL_REDUCE, user(30), collectives=(last("a", 3, pending=True),))
    second = at(1, *BARRIER, user(32), collectives=(last("a", 2, pending=True),))

    assert codes(snapshot(first, second)) == ["DD904"]


def test_without_records_it_cannot_be_judged() -> None:
    said = results(snapshot(*(at(rank, *ALL_REDUCE, user(30)) for rank in (0, 1))))

    assert said["DD911"].outcome is Outcome.SKIPPED
    assert said["DD908"].findings
