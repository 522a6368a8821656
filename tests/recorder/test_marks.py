"""The user's own marks: named spans, and where a step ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import ddpdoctor
from ddpdoctor import marks
from ddpdoctor.events import MOST_NAMES, NAME_LENGTH, Flag, Kind, Phase, RunInfo
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.named import OTHER_NAMES, SINGLE_SPANS, NamedSpans
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import RankTrace, read_rank
from tests.builders import rank_info


class Job:
    """A recorded loop of one rank, in which the training is played."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rank00000.ddt"
        self.errors: list[Exception] = []
        self._file = RankFile(self.path, RunInfo("r", 0, 1, "gloo"), rank_info(0, 1), 2**20)
        self._facts = FactsFile(self.path.with_suffix(".facts.jsonl"))
        self.phases = Phases(self._file)
        self._named = NamedSpans(self._file, self._facts, self.phases, Guard(self.errors.append))
        marks.send_to(self._named)

    def reduce_gradients(self) -> None:
        self.phases.end(self.phases.begin_forward(0, no_grad=False))
        self.phases.end(self.phases.begin(Phase.BACKWARD, 0))
        self.phases.synced_backward()

    def optimize(self) -> None:
        self.phases.end(self.phases.begin(Phase.OPTIMIZER, 0))
        self.phases.optimizer_stepped()

    def close(self) -> None:
        if not self._file.closed:
            marks.send_to(None)
            self.phases.finish()
            self._named.write_sums()
            self._file.close()
            self._facts.close()

    def record(self) -> RankTrace:
        self.close()
        assert self.errors == []
        return read_rank(self.path)[1]


@pytest.fixture
def job(tmp_path: Path):
    job = Job(tmp_path)
    yield job
    job.close()


def named(trace: RankTrace):
    return trace.detail[trace.detail["kind"] == Kind.NAMED]


def test_without_a_recorder_marks_do_nothing() -> None:
    @ddpdoctor.span("anything")
    def double(x: int) -> int:
        ddpdoctor.step()
        return 2 * x

    assert double(2) == 4
    assert double.__name__ == "double"


def test_a_span_is_recorded_and_its_name_is_a_fact(job: Job) -> None:
    with ddpdoctor.span("loss"):
        pass
    loss = ddpdoctor.span("loss")
    with loss:
        pass

    trace = job.record()

    assert trace.names == {1: "loss"}
    assert named(trace)["site"].tolist() == [1, 1]
    assert (named(trace)["end_ns"] >= named(trace)["begin_ns"]).all()


def test_of_spans_within_themselves_the_outermost_counts(job: Job) -> None:
    @ddpdoctor.span("tree")
    def depth(n: int) -> int:
        return n and 1 + depth(n - 1)

    assert depth(5) == 5

    assert len(named(job.record())) == 1


def test_an_exception_ends_a_span_and_goes_on(job: Job) -> None:
    with pytest.raises(ZeroDivisionError), ddpdoctor.span("fails"):
        1 / 0  # noqa: B018

    (record,) = named(job.record())
    assert record["end_ns"] > 0


def test_an_open_span_is_in_the_record_of_a_rank_that_hangs_in_it(job: Job) -> None:
    with ddpdoctor.span("evaluation"):
        trace = read_rank(job.path)[1]

    (record,) = named(trace)
    assert record["end_ns"] == 0
    assert trace.names[int(record["site"])] == "evaluation"


def test_other_threads_are_not_recorded(job: Job) -> None:
    def aside() -> None:
        with ddpdoctor.span("aside"):
            ddpdoctor.step()

    thread = threading.Thread(target=aside)
    thread.start()
    thread.join(timeout=10)

    assert len(named(job.record())) == 0


def test_many_spans_of_one_step_are_added_up(job: Job) -> None:
    for _ in range(1000):
        with ddpdoctor.span("layer"):
            pass
    job.reduce_gradients()
    job.optimize()
    with ddpdoctor.span("layer"):  # of the next step
        pass

    records = named(job.record())

    assert len(records) == SINGLE_SPANS + 2
    (summed,) = records[(records["flags"] & Flag.SUMMED) > 0]
    assert summed["seq"] == 1000 - SINGLE_SPANS
    assert 0 < summed["nbytes"] <= summed["end_ns"] - summed["begin_ns"]
    assert summed["step"] == 0


def test_names_are_bounded_in_number_and_length(job: Job) -> None:
    for index in range(MOST_NAMES + 50):
        with ddpdoctor.span(f"{index} " + "x" * 10_000):
            pass
    with ddpdoctor.span(("no", "string")):  # type: ignore[arg-type]
        pass

    trace = job.record()

    assert len(trace.names) == MOST_NAMES
    assert {len(name) for name in trace.names.values()} == {NAME_LENGTH}
    assert OTHER_NAMES in named(trace)["site"]


def test_generators_are_left_as_they_are_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def batches():
        yield 1

    assert ddpdoctor.span("batches")(batches) is batches
    assert "cannot time a generator" in caplog.text


def steps(trace: RankTrace):
    return trace.detail[trace.detail["kind"] == Kind.STEP]


def test_once_the_user_ends_steps_none_ends_elsewhere(job: Job) -> None:
    """Two models that take turns: by their optimizers these would be two steps a round."""
    for _ in range(3):
        for _ in range(2):
            job.reduce_gradients()
            job.optimize()
        ddpdoctor.step()

    records = steps(job.record())

    assert records["sync"].tolist() == [
        1,
        2,
        4,
        6,
    ]  # the first optimizer came before the first mark
    assert (records["begin_ns"][1:] == records["end_ns"][:-1]).all()


def test_a_mark_without_reduced_gradients_is_passed_over(job: Job) -> None:
    for _ in range(3):
        job.reduce_gradients()
        ddpdoctor.step()
        ddpdoctor.step()

    assert steps(job.record())["sync"].tolist() == [1, 2, 3]
