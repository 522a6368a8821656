"""Source lines and loops around frames, and where ranks stand relative to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.hang.position import Position, position
from ddpdoctor.hang.snapshot import RankProcess, ThreadStack
from ddpdoctor.hang.source import SourceReader
from ddpdoctor.stackframes import Frame, Loop, Origin

SCRIPT = """\
def train():
    for epoch in range(3):
        for batch in loader:
            step(batch)
        validate()
    save()


def main():
    prepare()
    train()
    finish()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def stack(path: Path, *places: tuple[str, int]) -> ThreadStack:
    """Innermost first, as py-spy says it."""
    frames = [Frame(str(path), line, function, Origin.USER) for function, line in places]
    return SourceReader().annotate(ThreadStack(1, "MainThread", tuple(frames)))


def rank(path: Path, *places: tuple[str, int]) -> RankProcess:
    return RankProcess(0, 1, threads=(stack(path, *places),))


def test_text_and_loops_of_a_line(script: Path) -> None:
    (frame,) = stack(script, ("train", 4)).frames

    assert frame.text == "step(batch)"
    assert frame.loops == (Loop(2, 5), Loop(3, 4))


def test_loops_of_another_function_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "nested.py"
    path.write_text("while True:\n    def f():\n        return 1\n    f()\n")

    assert stack(path, ("f", 3)).frames[0].loops == ()
    assert stack(path, ("<module>", 4)).frames[0].loops == (Loop(1, 4),)


def test_what_cannot_be_read_or_parsed_has_no_loops(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("for (\n")

    assert stack(tmp_path / "gone.py", ("f", 1)).frames[0].text is None
    assert stack(broken, ("f", 1)).frames[0].text == "for ("
    assert stack(broken, ("f", 1)).frames[0].loops == ()
    assert stack(broken, ("f", 99)).frames[0].text is None
    assert stack(Path("relative.py"), ("f", 1)).frames[0].text is None


IN_STEP = (("train", 4), ("main", 11))


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (IN_STEP, Position.SAME),
        ((("train", 5), ("main", 11)), Position.LEFT_LOOP),
        ((("train", 6), ("main", 11)), Position.LEFT_LOOP),
        ((("main", 12),), Position.LEFT_LOOP),
        ((("train", 3), ("main", 11)), Position.IN_LOOP),
        ((("train", 2), ("main", 11)), Position.IN_LOOP),
        ((("main", 10),), Position.BEHIND),
        ((("step", 1), *IN_STEP), Position.IN_LOOP),
        ((), Position.UNKNOWN),
    ],
    ids=[
        "same line", "after the inner loop", "after both loops", "the function returned",
        "next batch", "next epoch", "before it", "deeper", "no stack",
    ],
)  # fmt: skip
def test_where_a_rank_stands_as_seen_from_the_step(
    script: Path, places: tuple[tuple[str, int], ...], expected: Position
) -> None:
    assert position(rank(script, *places), rank(script, *IN_STEP)) is expected


def test_further_down_in_straight_code_is_ahead(script: Path) -> None:
    assert position(rank(script, ("main", 12)), rank(script, ("main", 10))) is Position.AHEAD


CONDITIONS = """\
def save(rank, step):
    if rank != 0:
        return
    write()
    dist.barrier()


def main(rank, value, best):
    for step in range(3):
        if step % 2:
            continue
        if value > best:
            keep()
        if is_main_process():
            evaluate()
        elif world_size > 1:
            wait()
        try:
            train()
        except MemoryError:
            skip()
    end()


if __name__ == "__main__":
    main(0, 1, 2)
"""


@pytest.mark.parametrize(
    ("line", "condition", "by_rank"),
    [
        (4, "rank != 0", True),
        (5, "rank != 0", True),
        (13, "value > best", False),
        (15, "is_main_process()", True),
        (17, "is_main_process()", True),
        (19, "step % 2", False),
        (22, None, False),
        (26, None, False),
    ],
)
def test_what_decides_that_a_line_is_reached(
    tmp_path: Path, line: int, condition: str | None, by_rank: bool
) -> None:
    path = tmp_path / "conditions.py"
    path.write_text(CONDITIONS)

    (frame,) = stack(path, ("f", line)).frames

    assert (frame.condition.text if frame.condition else None) == condition
    assert frame.condition is None or frame.condition.by_rank is by_rank


@pytest.mark.parametrize(
    "test", ["not dist.is_initialized()", "world_size == 1", "args.distributed", "num_gpus > 1"]
)
def test_what_is_alike_on_all_ranks_decides_nothing(tmp_path: Path, test: str) -> None:
    path = tmp_path / "helpers.py"
    path.write_text(f"def synchronize():\n    if {test}:\n        return\n    dist.barrier()\n")

    assert stack(path, ("synchronize", 4)).frames[0].condition is None


def test_a_line_of_an_exception_handler(tmp_path: Path) -> None:
    path = tmp_path / "conditions.py"
    path.write_text(CONDITIONS)

    assert stack(path, ("main", 21)).frames[0].in_handler
    assert not stack(path, ("main", 19)).frames[0].in_handler


ROUNDS = """\
def main():
    for epoch in range(3):
        for batch in loader:
            step(batch)
        if value > best:
            keep()
        dist.barrier()
    finish()
"""


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (6, Position.IN_LOOP),  # the other may be a round ahead
        (7, Position.LEFT_LOOP),
        (8, Position.LEFT_LOOP),
    ],
)
def test_a_line_that_is_reached_sometimes_is_not_behind_the_loop(
    tmp_path: Path, line: int, place: Position
) -> None:
    path = tmp_path / "rounds.py"
    path.write_text(ROUNDS)

    assert position(rank(path, ("main", line)), rank(path, ("main", 4))) is place


def test_a_test_that_is_nested_too_deeply_costs_the_conditions_only(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text("if " + "-" * 900 + "x:\n    stop()\n" + "if " + "x + " * 3000 + "x:\n  go()\n")

    (frame,) = stack(path, ("<module>", 2)).frames

    assert frame.text == "stop()"
