"""Parts of a step and named spans, from records to report."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddpdoctor.analysis import Analysis, analyze
from ddpdoctor.checks import run_checks
from ddpdoctor.events import Flag, Kind, Part
from ddpdoctor.parts import _spread
from ddpdoctor.plausible import plausible
from ddpdoctor.report import run_report
from ddpdoctor.report_text import render
from ddpdoctor.tracefile import RankTrace, Records, Run
from tests import builders
from tests.builders import MS, START_NS, StepTimes, simulate, with_ranks

STEPS = 20
NAMES = {1: "loss", 2: "\x1b[31mred"}


def healthy() -> Run:
    return simulate(lambda rank, step: StepTimes(), steps=STEPS)


def with_records(run: Run, more: Callable[[RankTrace], list[dict[str, int]]]) -> Run:
    """As a rank writes them that counts some parts and has named spans."""
    parts = frozenset({Part.GC, Part.THROTTLED, Part.RUN_QUEUE})
    return with_ranks(
        builders.with_records(run, more),
        lambda trace: replace(trace, parts=parts, names=NAMES),
    )


def steps_of(trace: RankTrace) -> Records:
    return trace.detail[trace.detail["kind"] == Kind.STEP]


def part(step: Records, which: Part, ms: float) -> dict[str, int]:
    return {
        "kind": Kind.PART, "code": which, "step": step["step"], "begin_ns": step["begin_ns"],
        "end_ns": step["end_ns"], "nbytes": int(ms * MS),
    }  # fmt: skip


def text_of(analysis: Analysis) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    render(run_report(analysis, run_checks(analysis)), console)
    return out.getvalue()


def test_what_was_not_counted_is_not_measured_and_never_zero() -> None:
    """A recording that says nothing of its parts had the run queue."""
    analysis = analyze(healthy())

    for rank in analysis.ranks:
        assert rank.times is not None
        assert rank.times.run_queue_ms == 0
        assert rank.times.gc_ms is rank.times.throttled_ms is rank.times.io_ms is None
        assert rank.times.h2d_ms is None


def test_a_part_without_a_record_was_zero_in_that_step() -> None:
    def every_second(trace: RankTrace) -> list[dict[str, int]]:
        late = trace.info.rank == 1
        return [part(step, Part.GC, 6.0) for step in steps_of(trace) if late and step["step"] % 2]

    analysis = analyze(with_records(healthy(), every_second))

    zero, three = (rank.times for rank in analysis.ranks)
    assert zero is not None
    assert three is not None
    assert zero.gc_ms == 0
    assert three.gc_ms == pytest.approx(3.0, abs=0.5)
    assert "of a step, garbage collection: rank 1 3" in text_of(analysis)
    assert "CPU quota" not in text_of(analysis)


def test_no_part_is_longer_than_its_step() -> None:
    run = with_records(
        healthy(), lambda trace: [part(step, Part.GC, 1e6) for step in steps_of(trace)]
    )

    steps = analyze(run).tables.steps

    assert (steps["gc_ns"] == steps["step_ns"]).all()


def span(name: int, begin: float, ms: float, **fields: int) -> dict[str, int]:
    begin_ns = int(begin)
    end_ns = begin_ns + int(ms * MS)
    return {"kind": Kind.NAMED, "site": name, "begin_ns": begin_ns, "end_ns": end_ns, **fields}


def test_spans_are_shown_by_name_in_milliseconds_a_step() -> None:
    """One around all steps takes the whole of each; short ones were added up."""

    def spans(trace: RankTrace) -> list[dict[str, int]]:
        steps = steps_of(trace)
        summed = [
            span(
                2, step["begin_ns"], 5.0, step=step["step"], flags=Flag.SUMMED, seq=30,
                nbytes=2 * MS,
            )
            for step in steps
        ]  # fmt: skip
        return [span(1, START_NS, 1e6), *summed]

    analysis = analyze(with_records(healthy(), spans))

    whole, short = analysis.named
    assert whole.name == "loss"
    assert whole.ms_by_rank[0] == pytest.approx(analysis.step_ms)
    assert short.ms_by_rank == {0: pytest.approx(2.0), 1: pytest.approx(2.0)}
    text = text_of(analysis)
    assert "span \\x1b[31mred: rank 0 2.0, rank 1 2.0 ms a step" in text
    assert "\x1b" not in text


def test_a_name_that_no_fact_tells_is_an_other_name() -> None:
    analysis = analyze(with_records(healthy(), lambda trace: [span(77, START_NS, 50.0)]))

    assert [named.name for named in analysis.named] == ["(other names)"]


@pytest.mark.parametrize(
    "change",
    [{"code": 99}, {"end_ns": 0}, {"nbytes": 2**60}, {"kind": Kind.NAMED, "site": 9999}],
    ids=str,
)
def test_records_that_cannot_be_true_are_left_out(change: dict[str, int]) -> None:
    def one(trace: RankTrace) -> list[dict[str, int]]:
        return [part(steps_of(trace)[3], Part.GC, 1.0) | change]

    (trace, _) = with_records(healthy(), one).ranks

    assert len(plausible(trace.detail, START_NS)) == len(trace.detail) - 1


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 100)), max_size=40))
def test_what_was_sampled_is_spread_back_and_fills_no_step_beyond_its_length(
    steps: list[tuple[int, int]],
) -> None:
    amounts = np.array([amount for amount, _ in steps], np.int64)
    length = np.array([long for _, long in steps], np.int64)
    spread = _spread(amounts, length)
    assert (spread >= 0).all()
    assert (spread <= length).all()
    # no step has any of what was sampled before it
    assert (np.cumsum(spread[::-1]) <= np.cumsum(amounts[::-1])).all()


def test_a_second_of_pressure_is_of_the_hundred_steps_before_it() -> None:
    amounts, length = np.zeros(300, np.int64), np.full(300, 10, np.int64)
    amounts[[120, 220]] = 900
    assert _spread(amounts, length).sum() == 1800
