"""Times of a GPU, with an imagined one: there is none where the tests run.

`ImaginedGpu` stands for the CUDA runtime alone: work goes into a stream, an event is done once the
device has come to it, and the device's clock is not the host's. All else is the recorder's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ddpdoctor.analysis import analyze
from ddpdoctor.events import Flag, GroupInfo, Kind, Op, Phase
from ddpdoctor.recordedcalls import UNKNOWN
from ddpdoctor.recorder import phases as phases_module
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.switch import RecordingSwitch
from ddpdoctor.recorder.timers import DeviceTimedFile, timed
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.schedule import Schedule, Switch
from ddpdoctor.tracefile import RankTrace, load_run
from tests.builders import rank_info
from tests.test_writer_and_tracefile import RUN, rank_path

MS = 1_000_000
START_NS = 5_000 * MS
LAUNCH_NS = 5_000  # between issuing and executing on an idle device


@dataclass
class ImaginedGpu:
    """Two streams; `host_ns` is moved by the test, `device_ns_of` is the device's own clock."""

    host_ns: int = START_NS
    drift: float = 0.0
    busy_until: dict[str, int] = field(default_factory=lambda: {"main": 0, "nccl": 0})
    stream: str = "main"
    capturing: bool = False
    queries_allowed: bool = False
    created: int = 0
    recorded: int = 0

    def now(self) -> int:
        self.host_ns += 10_000  # hooks of Python take longer than a launch
        return self.host_ns

    def run(self, ms: float, stream: str = "main") -> None:
        """Enqueue work; the host goes on at once."""
        begin = max(self.busy_until[stream], self.host_ns + LAUNCH_NS)
        self.busy_until[stream] = begin + int(ms * MS)

    def waits_for(self, waiting: str, other: str) -> None:
        """As `Work.wait` does: the stream waits, and the host does not."""
        self.busy_until[waiting] = max(self.busy_until[waiting], self.busy_until[other])

    def synchronize(self) -> None:
        """What a user's `loss.item()` does."""
        self.host_ns = max(self.host_ns, *self.busy_until.values())

    def device_ns_of(self, host_ns: int) -> int:
        return int((host_ns - START_NS) * (1 + self.drift)) + 777

    # what the recorder asks of a device
    def new_event(self) -> ImaginedEvent:
        self.created += 1
        return ImaginedEvent(self)

    def current_stream(self) -> str:
        return self.stream

    def is_capturing(self) -> bool:
        return self.capturing


@dataclass
class ImaginedEvent:
    gpu: ImaginedGpu
    done_at: int = 0

    def record(self, stream: str) -> None:
        assert not self.gpu.capturing, "an event was recorded while a graph was captured"
        self.gpu.recorded += 1
        self.done_at = max(self.gpu.busy_until[stream], self.gpu.host_ns + LAUNCH_NS)

    def query(self) -> bool:
        assert self.gpu.queries_allowed, "an event was asked elsewhere than at a step's end"
        return self.done_at <= self.gpu.host_ns

    def elapsed_time(self, end: ImaginedEvent) -> float:
        assert self.query()
        assert end.query()
        own, other = self.gpu.device_ns_of(self.done_at), self.gpu.device_ns_of(end.done_at)
        return float(np.float32((other - own) / MS))


class Training:
    """Steps as the hooks would tell them: the host enqueues, the GPU works."""

    def __init__(self, folder: Path, gpu: ImaginedGpu, schedule: Schedule | None = None) -> None:
        self.gpu = gpu
        info = replace(rank_info(0, 1), timer="cuda_event", began_ns=START_NS)
        self.file = RankFile(rank_path(folder), replace(RUN, world_size=1), info)
        facts = FactsFile(self.file.path.with_suffix(".facts.jsonl"))
        facts.group(GroupInfo("0", (0,)))
        facts.close()
        self.timed = DeviceTimedFile(self.file, gpu, gpu.now)
        self.settling(self.timed)
        switch = RecordingSwitch(schedule or Schedule(), self.turned)
        self.phases = Phases(self.timed, switch)
        self.seq = 0

    def turned(self, switch: Switch) -> None:
        self.timed.record(switch.on)

    def settling(self, timed: DeviceTimedFile) -> None:
        """Events may be asked within `settle` alone."""
        settle = timed.settle

        def allowed() -> None:
            self.gpu.queries_allowed = True
            settle()
            self.gpu.queries_allowed = False

        timed.settle = allowed  # type: ignore[method-assign]

    def span(self, phase: Phase, ms: float, *, on_host: bool = False) -> None:
        serial = self.phases.begin(phase, 0)
        if on_host:
            self.gpu.host_ns += int(ms * MS)
        else:
            self.gpu.run(ms)
        self.phases.end(serial)

    def bucket(self, ms: float) -> None:
        """Enqueued on the stream of the backend, behind what made the gradients."""
        seq, self.seq = self.seq, self.seq + 1
        serial = self.timed.add(
            Kind.COLLECTIVE, Op.ALL_REDUCE, Flag.BUCKET, 1, self.phases.step, self.phases.sync,
            seq, 0, 0, 0, -1, self.gpu.now(), 0, 0, 1000,
        )  # fmt: skip
        self.gpu.waits_for("nccl", "main")
        self.gpu.run(ms, "nccl")
        self.gpu.stream = "nccl"  # the stream that is current in the callback
        self.timed.completes(serial)
        self.gpu.stream = "main"

    def step(self, *, load_ms: float = 0.0, sync: bool = False) -> None:
        """forward 3 ms, backward 6 ms with a bucket of 4 ms at its middle, optimizer 1 ms."""
        self.span(Phase.INPUT, load_ms, on_host=True)
        forward = self.phases.begin_forward(0, no_grad=False)
        self.gpu.run(3)
        self.phases.end(forward)
        backward = self.phases.begin(Phase.BACKWARD, 0)
        self.gpu.run(5)
        self.bucket(4)
        self.gpu.run(1)
        blocked = self.phases.begin(Phase.BLOCKED, 0)
        self.gpu.waits_for("main", "nccl")
        self.phases.end(blocked)
        self.phases.end(backward)
        self.phases.synced_backward()
        self.span(Phase.OPTIMIZER, 1)
        self.phases.optimizer_stepped()
        if sync:
            self.gpu.synchronize()

    def end(self) -> RankTrace:
        self.phases.finish()
        self.timed.close()
        self.file.close()
        (trace,) = load_run(self.file.path.parent).ranks
        return trace


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ImaginedGpu:
    made = ImaginedGpu()
    monkeypatch.setattr(phases_module, "_now", made.now)
    return made


def test_on_the_host_the_file_itself_is_used(tmp_path: Path) -> None:
    file = RankFile(rank_path(tmp_path), RUN, rank_info(0, 2))

    assert timed(file, torch.device("cpu")) is file
    file.close()


def test_a_host_far_ahead_of_the_device_is_timed_by_the_device(
    gpu: ImaginedGpu, tmp_path: Path
) -> None:
    """The host enqueues a step in microseconds; the phases are the GPU's, and they add up."""
    training = Training(tmp_path, gpu)
    for number in range(40):
        training.step(sync=number % 10 == 9)
    training.end()

    (rank,) = analyze(load_run(training.file.path.parent)).ranks

    assert rank.times is not None
    assert rank.times.forward_ms == pytest.approx(3, abs=0.05)
    assert rank.times.backward_ms == pytest.approx(6, abs=0.05)
    assert rank.times.transfer_ms == pytest.approx(3, abs=0.05)  # 4 ms, of which 1 was hidden
    assert rank.times.overlapped_ms == pytest.approx(1, abs=0.05)
    assert rank.times.optimizer_ms == pytest.approx(1, abs=0.05)
    assert rank.times.step_ms == pytest.approx(13, abs=0.1)
    assert training.timed.untimed == 0


def test_waiting_for_input_counts_only_where_the_device_has_nothing_to_do(
    gpu: ImaginedGpu, tmp_path: Path
) -> None:
    hidden, starved = Training(tmp_path / "hidden", gpu), Training(tmp_path / "starved", gpu)
    for number in range(30):
        hidden.step(load_ms=10, sync=number % 10 == 9)
    hidden.end()
    for _ in range(30):
        starved.step(load_ms=30)
    starved.end()

    (of_hidden,) = analyze(load_run(hidden.file.path.parent)).times
    (of_starved,) = analyze(load_run(starved.file.path.parent)).times

    assert of_hidden.step_ms == pytest.approx(13, abs=1)
    assert of_hidden.input_ms < 1.5  # after each synchronisation, and nowhere else
    assert of_starved.input_ms == pytest.approx(17, abs=1)  # the host takes some time, too
    assert of_starved.step_ms == pytest.approx(30, abs=1)


def test_completion_is_when_the_device_is_done(gpu: ImaginedGpu, tmp_path: Path) -> None:
    training = Training(tmp_path, gpu)
    for _ in range(20):
        training.step(sync=True)
    training.end()

    collectives = analyze(load_run(training.file.path.parent)).tables.collectives

    assert (collectives["completion_ns"] != UNKNOWN).all()
    transfer_ms = collectives["transfer_ns"].to_numpy() / MS
    assert transfer_ms == pytest.approx(np.full(20, 4.0), abs=0.05)


def test_a_collective_on_the_host_keeps_the_hosts_times(gpu: ImaginedGpu, tmp_path: Path) -> None:
    training = Training(tmp_path, gpu)
    gpu.run(50)
    serial = training.timed.add(
        Kind.COLLECTIVE, Op.BARRIER, 0, 0, 0, 0, 0, 0, -1, 0, -1, START_NS + 7, 0, 0, 0
    )
    training.timed.finish(serial, START_NS + 99, START_NS + 8)
    trace = training.end()

    times = [trace.detail[name].tolist() for name in ("begin_ns", "issued_ns", "end_ns")]
    assert times == [[START_NS + 7], [START_NS + 8], [START_NS + 99]]


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured(
    gpu: ImaginedGpu, tmp_path: Path
) -> None:
    training = Training(tmp_path, gpu)
    training.step(sync=True)
    before = gpu.recorded
    gpu.capturing = True
    training.step()
    assert gpu.recorded == before
    gpu.capturing = False
    for _ in range(3):
        training.step(sync=True)
    trace = training.end()

    steps = trace.detail[trace.detail["kind"] == Kind.STEP]["step"].tolist()
    assert 1 not in steps  # what was captured was not run
    assert {3, 4} <= set(steps)
    assert training.timed.untimed > 0


def test_events_are_used_again(gpu: ImaginedGpu, tmp_path: Path) -> None:
    training = Training(tmp_path, gpu)
    for _ in range(300):
        training.step(sync=True)
    training.end()

    assert gpu.recorded > 3000
    assert gpu.created < 40


def test_what_is_not_done_at_the_end_is_not_waited_for(gpu: ImaginedGpu, tmp_path: Path) -> None:
    training = Training(tmp_path, gpu)
    for _ in range(3):
        training.step(sync=True)
    gpu.run(3600 * 1000)
    training.step()
    before = gpu.host_ns
    trace = training.end()

    assert gpu.host_ns - before < MS
    assert training.timed.untimed > 0
    assert (trace.detail["end_ns"] > 0).all()


@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5])
def test_the_clocks_are_compared_within_the_bound_that_is_told(
    drift: float, gpu: ImaginedGpu, tmp_path: Path
) -> None:
    """Half an hour in which the two clocks drift by 36 ms, with elapsed times of 32 bits."""
    gpu.drift = drift
    training = Training(tmp_path, gpu)
    truth = []
    for _ in range(1800):
        gpu.host_ns += 1000 * MS
        training.step(sync=True)
        truth.append(gpu.busy_until["main"])
    error_ns = training.timed.clock.error_ns
    trace = training.end()

    steps = trace.detail[trace.detail["kind"] == Kind.STEP]
    assert error_ns < MS
    assert np.abs(steps["end_ns"] - np.array(truth)).max() < error_ns


def test_the_first_step_after_a_pause_does_not_reach_back_into_it(
    gpu: ImaginedGpu, tmp_path: Path
) -> None:
    schedule = Schedule((Switch(4, on=False), Switch(20, on=True)))
    training = Training(tmp_path, gpu, schedule)
    for _ in range(24):
        training.step(sync=True)
    trace = training.end()

    steps = trace.detail[trace.detail["kind"] == Kind.STEP]
    assert set(steps["sync"].tolist()) == {
        1,
        2,
        3,
        21,
        22,
        23,
        24,
    }  # of the 20th the begin is unknown
    assert ((steps["end_ns"] - steps["begin_ns"]) < 15 * MS).all()
