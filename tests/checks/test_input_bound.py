"""DD301 input-bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Kind, Part, Phase
from ddpdoctor.findings import Severity
from tests.builders import (
    LINE,
    MS,
    StepTimes,
    drawn,
    loader,
    result_of,
    simulate,
    with_loader,
    with_ranks,
    with_records,
    with_samples,
)


def all_wait(ms: float):
    return simulate(lambda rank, step: StepTimes(input=ms))


def test_a_rank_whose_loader_is_not_known_can_be_the_one_with_the_least() -> None:
    run = with_loader(simulate(lambda rank, step: StepTimes(input=20 + rank)))
    run = with_ranks(
        run, lambda trace: replace(trace, loaders={} if trace.info.rank == 0 else trace.loaders)
    )

    (finding,) = result_of("DD301", run).findings

    assert finding.culprits == (0, 1)


def test_a_loader_without_workers_that_takes_half_the_step() -> None:
    run = with_samples(with_loader(all_wait(20), workers=0), 0, Phase.INPUT, 50)

    (finding,) = result_of("DD301", run).findings

    assert finding.severity is Severity.ERROR
    assert finding.culprits == (0, 1)
    assert finding.where[0].line == LINE[Phase.INPUT].line
    assert "num_workers=2" in finding.fix
    assert "17.0 ms instead of 37.0 ms" in finding.fix


@pytest.mark.parametrize(("cpus", "enough"), [(None, True), (8, True), (7, False), (2, False)])
def test_as_many_workers_are_advised_as_hide_the_input(cpus: int | None, enough: bool) -> None:
    """More than there are CPUs help a sample that waits for its disk, and only that."""

    def few(trace):
        return replace(trace, info=replace(trace.info, cpus=cpus))

    (finding,) = result_of("DD301", with_ranks(with_loader(all_wait(110)), few)).findings

    assert "num_workers=7," in finding.fix
    assert ("help only where a sample waits" in finding.fix) == (not enough)


def test_the_advice_is_for_the_loader_that_gives_most_batches() -> None:
    def two(trace):
        epochs = (drawn(range(16)), replace(drawn(range(320)), loader=1))
        loaders = {0: loader(workers=0), 1: loader(loader=1, workers=3)}
        return replace(trace, drawn=epochs, loaders=loaders)

    (finding,) = result_of("DD301", with_ranks(all_wait(20), two)).findings

    assert finding.fix.startswith("3 workers are too slow")


def test_workers_that_are_too_slow() -> None:
    (finding,) = result_of("DD301", with_loader(all_wait(4), workers=3)).findings

    assert finding.severity is Severity.WARNING
    assert finding.fix.startswith("3 workers are too slow")


@pytest.mark.parametrize(
    ("input_ms", "queued_ms", "severity"),
    [(4, 0, Severity.WARNING), (4, 3, Severity.INFO), (20, 3, Severity.ERROR)],
)
def test_an_input_wait_that_a_busy_host_explains_is_no_warning(
    input_ms: float, queued_ms: float, severity: Severity
) -> None:
    def on_a_busy_host(trace):
        detail = trace.detail.copy()
        detail["nbytes"][detail["kind"] == Kind.STEP] = int(queued_ms * MS)
        return replace(trace, detail=detail)

    run = with_ranks(with_loader(all_wait(input_ms), workers=1), on_a_busy_host)

    (finding,) = result_of("DD301", run).findings

    assert finding.severity is severity
    assert ("it waits for a CPU" in finding.message) == (severity is Severity.INFO)


def under_pressure(run, cpu: float, io: float):
    """So large a share of each step some task of the host waited."""

    def pressed(trace):
        rows = []
        for step in trace.detail[trace.detail["kind"] == Kind.STEP]:
            length = int(step["end_ns"] - step["begin_ns"])
            row = {"kind": Kind.PART, "step": int(step["step"])}
            row |= {"begin_ns": int(step["begin_ns"]), "end_ns": int(step["end_ns"])}
            rows.append(row | {"code": Part.CPU_PRESSURE, "nbytes": int(cpu * length)})
            rows.append(row | {"code": Part.IO_PRESSURE, "nbytes": int(io * length)})
        return rows

    parts = frozenset({Part.RUN_QUEUE, Part.CPU_PRESSURE, Part.IO_PRESSURE})
    return with_ranks(with_records(run, pressed), lambda trace: replace(trace, parts=parts))


@pytest.mark.parametrize(
    ("cpu", "io", "said"),
    [
        (0.9, 0.0, "find no free CPU"),
        (0.1, 0.9, "wait for storage"),
        (0.9, 0.9, "step: raise num_workers"),
        (0.0, 0.0, "step: raise num_workers"),
    ],
)
def test_workers_without_cpus_and_a_slow_disk_are_told_apart(
    cpu: float, io: float, said: str
) -> None:
    run = under_pressure(with_loader(all_wait(20), workers=3), cpu, io)
    (finding,) = result_of("DD301", run).findings
    assert said in finding.fix


@pytest.mark.parametrize(("input_ms", "heard"), [(4, False), (9, True)])
def test_where_cpus_are_taken_two_time_slices_are_no_slow_loader(
    input_ms: float, heard: bool
) -> None:
    run = under_pressure(with_loader(all_wait(input_ms), workers=1), 0.9, 0.0)
    assert (result_of("DD301", run).outcome is Outcome.FINDINGS) == heard


def test_a_short_wait_is_clean() -> None:
    assert result_of("DD301", with_loader(all_wait(1))).outcome is Outcome.CLEAN


def test_one_rank_that_waits_is_a_late_rank_and_not_an_input_bound_job() -> None:
    run = simulate(lambda rank, step: StepTimes(input=41 if rank == 1 else 1))

    assert result_of("DD301", with_loader(run)).outcome is Outcome.CLEAN
    assert result_of("DD101", with_loader(run)).outcome is Outcome.FINDINGS


def test_bursts_count_though_the_median_wait_is_zero() -> None:
    """A loader that delivers in bursts (a worker's prefetch runs empty every fourth step)."""
    run = simulate(lambda rank, step: StepTimes(input=60 if step % 4 == 0 else 0))

    (finding,) = result_of("DD301", with_loader(run, workers=4)).findings

    median = next(e.value for e in finding.evidence if e.what == "its median over the steps")
    assert median == 0


def test_input_without_a_torch_loader_is_not_measured() -> None:
    assert result_of("DD301", all_wait(20)).outcome is Outcome.SKIPPED
