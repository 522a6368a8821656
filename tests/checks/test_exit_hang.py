"""DD912 exit-hang."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.findings import Confidence
from ddpdoctor.hang.snapshot import DeadRank, ThreadStack
from ddpdoctor.stackframes import Frame, Origin
from tests.hang_builders import DESTROY, at, codes, in_backward, only_finding, snapshot, user

SHUTDOWN = Frame("/usr/lib/python3.11/threading.py", 1500, "_shutdown", Origin.PYTHON)
LOGGER = ThreadStack(77, "uploader", (user(90, "queue.get()", "upload"),))


def test_a_thread_that_keeps_the_process() -> None:
    ending = at(0, SHUTDOWN)
    ending = replace(ending, threads=(*ending.threads, LOGGER))

    code, finding = only_finding(snapshot(ending, dead=(DeadRank(1),)))

    assert (code, finding.culprits) == ("DD912", (0,))
    assert finding.confidence is Confidence.LIKELY
    assert finding.where[0].line == 90
    assert "thread uploader" in finding.message


def test_without_such_a_thread_it_is_only_possible() -> None:
    ranks = [at(rank, *DESTROY, user(70)) for rank in (0, 1)]

    code, finding = only_finding(snapshot(*ranks))

    assert (code, finding.confidence) == ("DD912", Confidence.POSSIBLE)


def test_a_rank_that_still_trains_makes_it_another_kind() -> None:
    assert codes(snapshot(in_backward(0), at(1, *DESTROY, user(70)))) == ["DD902"]


def test_ranks_that_just_end_are_no_hang() -> None:
    ending = at(0, SHUTDOWN)

    assert codes(snapshot(ending, ended=(1,), world_size=2)) == ["DD906"]
