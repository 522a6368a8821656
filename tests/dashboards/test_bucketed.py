"""Which parameters each bucket holds: by the order of their gradients and the buckets' sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpdoctor.analysis import Analysis, analyze
from ddpdoctor.analysis.bucketed import BucketParameters, bucket_parameters
from ddpdoctor.analysis.buckets import bucket_stats
from ddpdoctor.dashboards.app import PAGES
from ddpdoctor.dashboards.offline import markup
from ddpdoctor.dashboards.shown import Shown
from ddpdoctor.modelevents import GradientTimes, ModelFacts, ModelInfo, WatchedTensor
from ddpdoctor.sheets import buckets_sheet
from tests.builders import StepTimes, simulate, with_ranks
from tests.dashboards.shown import report_on

SHAPES = {"first": "100x100", "norm": "100", "second": "100x99", "last": "100x100"}
BYTES = 4 * 100 * 100  # of each bucket: two of one matrix, and one that a matrix and a vector fill
FILLED = [("last",), ("second", "norm"), ("first",)]


def info(number: int = 0, shapes: dict[str, str] = SHAPES) -> ModelInfo:
    watched = tuple(
        WatchedTensor(place, name, shape, "float32", trainable=True, reduced=True)
        for place, (name, shape) in enumerate(shapes.items())
    )
    return ModelInfo(number, "Net", "0", len(shapes), 0, 30_000, 1, 1, {}, watched, ())


def analysis_of(models: Sequence[ModelInfo], places: Sequence[int] = ()) -> Analysis:
    run = simulate(
        lambda rank, step: StepTimes(), 2, 20, transfer_ms=(0.5,) * 3, bucket_bytes=BYTES
    )
    looks = {(0, 1): GradientTimes(0, 1, tuple(places), tuple(range(len(places))))}
    facts = ModelFacts(
        {each.model: each for each in models}, gradient_times=looks if places else {}
    )
    return analyze(with_ranks(run, lambda trace: replace(trace, model=facts)))


def held(analysis: Analysis) -> list[tuple[str, ...]]:
    return [part.names for part in parts_of(analysis)]


def parts_of(analysis: Analysis) -> tuple[BucketParameters, ...]:
    return bucket_parameters(analysis.models, bucket_stats(analysis))


def test_the_models_last_first_where_no_order_was_seen() -> None:
    analysis = analysis_of([info()])
    assert held(analysis) == FILLED
    assert [(part.bucket, part.nbytes, part.model) for part in parts_of(analysis)] == [
        (bucket, BYTES, "Net") for bucket in range(3)
    ]


def test_the_order_that_was_seen_goes_before_the_models() -> None:
    assert held(analysis_of([info()], places=(0, 1, 2, 3))) == [
        ("first",), ("norm", "second"), ("last",),
    ]  # fmt: skip


def test_an_order_that_does_not_fill_the_buckets_is_not_taken() -> None:
    assert held(analysis_of([info()], places=(1, 0, 2, 3))) == FILLED
    assert held(analysis_of([info(shapes={**SHAPES, "norm": "101"})])) == []
    assert held(analysis_of([info(shapes={**SHAPES, "more": "10"})])) == []
    assert held(analysis_of([])) == []


def test_what_two_models_fit_is_said_of_neither() -> None:
    assert held(analysis_of([info(0), info(1)])) == []


def test_the_page_and_its_table_name_them() -> None:
    analysis = analysis_of([info()])
    cells = [row.cells[-1] for row in buckets_sheet(analysis).rows]
    assert cells == ["last", "2: second … norm", "first"]
    shown = markup(PAGES["buckets"](Shown(report_on(analysis.run)), lambda path: path))
    assert "Bucket 1 of Net: 2 parameters" in shown
    without = markup(PAGES["buckets"](Shown(report_on(analysis_of([]).run)), lambda path: path))
    assert "Parameters of" not in without
