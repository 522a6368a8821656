"""A thousand ranks, by their flight recorders or records: judging takes as much longer as they
are more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpdoctor.diagnose import Diagnosis, judge, judge_dumps
from ddpdoctor.hang.calls import DEFAULT_GROUP, Call, CallGroup, CallSite, Dumps, RankCalls
from ddpdoctor.hang.dumps import read_dumps
from ddpdoctor.hang.snapshot import HangSnapshot, LastCollective
from tests.dump_builders import call, write
from tests.hang_builders import BARRIER, at, in_backward, snapshot, user

FEW, MANY = 256, 1024
MOST_TIMES = 8  # in proportion it is 4, and 16 where each rank is held against each other one
BEFORE = tuple(Call(DEFAULT_GROUP, seq, "all_reduce", done=True) for seq in (1, 2))


def waits(seq: int, line: int = 12, size: int = 4) -> Call:
    site = CallSite("/home/user/train.py", line, "train")
    return Call(DEFAULT_GROUP, seq, "all_reduce", False, inputs=((size,),), site=site)


def receives(peer: int) -> Call:
    return Call(DEFAULT_GROUP, 1, "recv", False, point_to_point=True, peer=peer)


Last = Callable[[int, int], tuple[Call, ...]]  # of a rank among so many
KINDS: dict[str, tuple[Last, str]] = {
    "one is missing": (lambda r, n: () if r == 7 else (waits(3),), "DD903"),
    "all in one call": (lambda r, n: (waits(3),), "DD908"),
    "all in different calls": (lambda r, n: (waits(3, r + 1, r + 1),), "DD904"),
    "each at another call": (lambda r, n: tuple(waits(3 + i) for i in range(r % 16)), "DD903"),
    "a pipeline": (lambda r, n: (receives(r + 1),) if r < n - 1 else (), "DD903"),
    "a ring": (lambda r, n: (receives((r + 1) % n),), "DD904"),
}


def judged(count: int, last: Last) -> tuple[Diagnosis, float]:
    """What is said of so many ranks, and the CPU seconds that it takes."""
    group = (CallGroup(DEFAULT_GROUP, "", tuple(range(count))),)
    spent = []
    for _ in range(3):
        ranks = (RankCalls(rank, BEFORE + last(rank, count), group) for rank in range(count))
        dumps = Dumps(tuple(ranks))
        began = time.process_time()
        diagnosis = judge_dumps(dumps, "dumps")
        spent.append(time.process_time() - began)
    return diagnosis, min(spent)


@pytest.mark.parametrize("kind", KINDS)
def test_it_grows_in_proportion(kind: str) -> None:
    last, code = KINDS[kind]
    _, few_s = judged(FEW, last)

    diagnosis, many_s = judged(MANY, last)

    assert diagnosis.report.primary == code
    (found,) = [finding for _, finding in diagnosis.report.findings]
    assert len(found.evidence) < 20
    assert many_s < MOST_TIMES * few_s


def stacks_of(count: int) -> HangSnapshot:
    """One has left the loop; each is in the call of a group of all, as its record tells, too."""
    members = tuple(range(count))

    def last(op: str) -> tuple[LastCollective, ...]:
        return (LastCollective(DEFAULT_GROUP, members, 5, op, pending=True),)

    ranks = [in_backward(rank, collectives=last("all_reduce")) for rank in members]
    ranks[7] = at(7, *BARRIER, user(50), collectives=last("barrier"))
    return snapshot(*ranks)


def test_stacks_of_many_hosts() -> None:
    spent = []
    for count in (FEW, MANY):
        seen = stacks_of(count)
        began = time.process_time()
        report = judge(seen)
        spent.append(time.process_time() - began)

        assert report.primary == "DD902"
        assert report.findings[0][1].culprits == (7,)
    assert spent[1] < MOST_TIMES * spent[0]


def test_a_thousand_files(tmp_path: Path) -> None:
    there, missing = [call(1, done=True), call(2, at=12)], [call(1, done=True)]
    calls = {rank: missing if rank == 512 else there for rank in range(MANY)}
    write(tmp_path / "dumps", calls, g0=list(range(MANY)))

    report = judge_dumps(read_dumps([tmp_path / "dumps"]), "dumps").report

    (found,) = [finding for _, finding in report.findings]
    assert (report.primary, found.culprits) == ("DD903", (512,))
    assert len(found.victims) == MANY - 1
