"""DD911 group-order."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.hang.snapshot import LastCollective
from tests import dump_builders as dumps
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


def test_two_groups_in_opposite_order_in_dumps(tmp_path: Path) -> None:
    first = [dumps.call(1, group="1", done=True), dumps.call(2, group="1", at=30)]
    second = [dumps.call(1, group="1", done=True), dumps.call(1, group="2", at=31)]
    folder = dumps.write(tmp_path, {0: first, 1: second, 2: second}, g1=[0, 1], g2=[0, 1, 2])

    code, finding = dumps.only_finding(folder)

    assert (code, finding.culprits, finding.victims) == ("DD911", (0, 1), (2,))
    assert {place.line for place in finding.where} == {30, 31}


def test_two_groups_in_the_same_order_are_no_fault(tmp_path: Path) -> None:
    both = [dumps.call(1, group="1"), dumps.call(1, group="2")]

    ranks = {0: both, 1: both[:1]}

    assert dumps.only_finding(dumps.write(tmp_path, ranks, g1=[0, 1], g2=[0, 1]))[0] == "DD908"
