"""DD905 off-by-one-collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.findings import Confidence
from tests import hang_builders as live
from tests.dump_builders import call, calls_in, only_finding, results, write

LOSS, METRIC, EXTRA = 10, 20, 30  # lines


def steps(count: int, *, extra_at: int | None = None, skipped_at: int | None = None,
          lines: tuple[int, ...] = (LOSS, METRIC)) -> list[dict[str, Any]]:  # fmt: skip
    """Two calls a step, all done; with one more before a step, or its second left out."""
    made: list[int] = []
    for step in range(count):
        made += [EXTRA] if step == extra_at else []
        made += lines[:1] if step == skipped_at else lines
    return [call(n, done=True, at=at) for n, at in enumerate(made, 1)]


def hung(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*calls[:-1], calls[-1] | {"retired": False}]


def test_a_rank_with_a_call_too_many(tmp_path: Path) -> None:
    """All others are through with their calls, and would be blamed for being in none."""
    folder = write(tmp_path, {0: steps(5), 1: hung(steps(5, extra_at=2)), 2: steps(5)})

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD905", (1,))
    assert finding.confidence is Confidence.LIKELY
    assert "since number 5 of group 0: all_reduce at train.py:30" in finding.message
    assert [(place.rank, place.line) for place in finding.where] == [(1, EXTRA), (0, LOSS)]


def test_a_rank_with_a_call_too_few(tmp_path: Path) -> None:
    others = hung(steps(5))
    folder = write(tmp_path, {0: others, 1: steps(5, skipped_at=2), 2: others})

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD905", (1,))
    assert "ranks 0 and 2 are one call ahead of rank 1" in finding.message
    assert "all_reduce at train.py:20, where rank 1 made all_reduce at" in finding.message


def test_of_two_ranks_neither_is_named(tmp_path: Path) -> None:
    code, finding = only_finding(write(tmp_path, {0: steps(5), 1: hung(steps(5, extra_at=2))}))

    assert (code, finding.culprits) == ("DD905", ())
    assert [place.rank for place in finding.where] == [1, 0]


def test_a_rank_alone_in_a_call_at_the_end(tmp_path: Path) -> None:
    folder = write(tmp_path, {0: [*steps(3), call(7, at=EXTRA)], 1: steps(3), 2: steps(3)})

    code, finding = only_finding(folder)

    assert (code, finding.culprits, finding.confidence) == ("DD905", (0,), Confidence.POSSIBLE)


def test_sizes_tell_it_where_lines_are_not_known(tmp_path: Path) -> None:
    def sized(*sizes: int) -> list[dict[str, Any]]:
        return [call(n, done=True, size=[s], frames=[]) for n, s in enumerate(sizes, 1)]

    folder = write(
        tmp_path,
        {
            0: sized(4, 8, 4, 8, 4, 8),
            1: hung(sized(4, 8, 2, 4, 8, 4, 8)),
            2: sized(4, 8, 4, 8, 4, 8),
        },
    )

    code, finding = only_finding(folder)

    assert (code, finding.culprits) == ("DD905", (1,))


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_rank_that_is_only_behind_is_not_off_by_one(tmp_path: Path, behind: int) -> None:
    others = hung(steps(5))

    code, finding = only_finding(write(tmp_path, {0: others, 1: others[:-behind], 2: others}))

    assert (code, finding.culprits) == ("DD903", (1,))


def test_ranks_that_make_the_same_call_on_different_lines_are_not(tmp_path: Path) -> None:
    """As with `if rank == 0:` and `else:`, both with a call."""
    others, own = steps(5), steps(5, lines=(LOSS, METRIC + 1))

    assert not results(write(tmp_path, {0: own, 1: others, 2: others}))["DD905"].findings
    hanging = write(tmp_path, {0: own[:-1], 1: hung(others), 2: hung(others)})
    assert only_finding(hanging)[0] == "DD903"


def sized(*sizes: int) -> list[dict[str, Any]]:
    return [call(n, done=True, size=[size]) for n, size in enumerate(sizes, 1)]


@pytest.mark.parametrize("line", [30, 32], ids=["in the same line", "on another line"])
def test_recorded_ranks_tell_it_while_they_hang(line: int) -> None:
    """By their stacks, rank 1 would be in the call of the others, or they would be missing."""
    ahead = calls_in(hung(sized(4, 8, 2, 4, 8, 4, 8)))
    others = calls_in(hung(sized(4, 8, 4, 8, 4, 8)))
    seen = live.snapshot(
        live.at(0, *live.ALL_REDUCE, live.user(30), calls=others),
        live.at(1, *live.ALL_REDUCE, live.user(line), calls=ahead),
        live.at(2, *live.ALL_REDUCE, live.user(30), calls=others),
    )

    code, finding = live.only_finding(seen)

    assert (code, finding.culprits, finding.hosts) == ("DD905", (1,), ("node1",))
    assert "number 2 of group 0" in finding.message  # from 0, as in our records
    assert [(place.rank, place.line) for place in finding.where] == [(0, 30), (1, line), (2, 30)]


def test_ranks_that_still_move_are_no_hang() -> None:
    ahead, others = calls_in(sized(4, 8, 2, 4, 8, 4, 8)), calls_in(sized(4, 8, 4, 8, 4, 8))
    seen = live.snapshot(
        live.at(0, *live.ALL_REDUCE, live.user(30), calls=others),
        live.at(1, live.user(25), calls=ahead, movement=live.BUSY),
    )

    assert live.codes(seen) == ["DD906"]
