"""What fixes of the communication would gain, by replaying the recorded steps with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.bucketing import CAPS_MB, bucket_sizes, parameter_bytes
from ddpdoctor.analysis.gaintypes import ACCUMULATED, FASTER, Fix, Gain, Gains
from ddpdoctor.analysis.model import LinkFit
from ddpdoctor.analysis.replay import Link, Steps, replay
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.analysis.stepcalls import CallsOfStep, NoReplay
from ddpdoctor.events import Op

Floats = npt.NDArray[np.float64]

# What the model leaves out (gradients between two buckets, the end of each message on each rank)
# was 1 to 6 % of a step between caps of 1 and 100 MB on links of 0.3 and 1 Gbit/s.
MODEL_ERROR: Final = 0.06  # of what is saved
LEAST_ERROR: Final = 0.005  # of the step: no run repeats itself closer
LINK_ERROR: Final = 0.05  # of the bandwidth; a link of a known rate is fitted to within that
MOST_SELF_ERROR: Final = 0.10  # of the step: with more, the replay is not the recorded step
COMPRESSED: Final = 0.5  # fp16 and bf16 of fp32 gradients
# Casting to half the size and back reads and writes each byte three times; a core copies some
# 5 GB/s. Devices do it in no time.
CAST_GB_PER_S: Final = 1.5
BY_THE_CPU: Final = (
    "the ranks share a host and gloo moves their gradients by the CPU, so that transfers and "
    "compute slow each other: what a change gains must be measured"
)


def gains(
    calls: CallsOfStep | NoReplay, link: LinkFit | None, models: tuple[ModelGroup, ...],
    *, by_the_cpu: bool,
) -> Gains:  # fmt: skip
    """All fixes that have something to change in these steps."""
    if by_the_cpu:
        return Gains(reason=BY_THE_CPU)
    if isinstance(calls, NoReplay):
        return Gains(reason=calls.reason)
    known = link.as_link if link is not None else None
    if known is None:
        return Gains(reason="latency and bandwidth of the link are not known")
    if not len(calls.steps.buckets):
        return Gains(reason="no bucket of gradients was reduced")
    played = Playing.of(calls.steps, known)
    if played.self_error > MOST_SELF_ERROR:
        return Gains(
            reason=f"the replay misses the recorded step by {played.self_error:.0%}",
            self_error=played.self_error,
        )
    endless = replay(calls.steps, Link(0.0, 1e12, known.at_once)).step_ms
    ideal_ms = played.predicted(float(endless.mean()))
    return Gains(tuple(_all(played, calls, models)), None, played.self_error, ideal_ms)


@dataclass(frozen=True)
class Playing:
    """Steps replayed unchanged, against which changes are held."""

    steps: Steps
    link: Link
    recorded_ms: float
    unchanged_ms: float
    scatter_ms: float  # standard error of the mean difference to the record

    @classmethod
    def of(cls, steps: Steps, link: Link) -> Playing:
        unchanged = replay(steps, link).step_ms
        off = unchanged - steps.recorded_ms
        scatter = float(off.std()) / max(1.0, float(np.sqrt(len(off))))
        return cls(steps, link, float(steps.recorded_ms.mean()), float(unchanged.mean()), scatter)

    @property
    def self_error(self) -> float:
        return abs(self.unchanged_ms - self.recorded_ms) / self.recorded_ms

    def predicted(self, changed_ms: float) -> float:
        """What the replay says, without what it is off by already."""
        return self.recorded_ms + changed_ms - self.unchanged_ms

    def gain(
        self, fix: Fix, setting: str, steps: Steps, link: Link | None = None, share: float = 1.0
    ) -> Gain:
        """Of other steps or another link; `share` of all steps are changed by so much."""
        link = link or self.link
        saved = share * self._saved(steps, link)
        slower = share * self._saved(steps, link.faster(1 - LINK_ERROR), 1 - LINK_ERROR)
        return self._gain(fix, setting, saved, abs(slower - saved))

    def _gain(self, fix: Fix, setting: str, saved_ms: float, more_ms: float) -> Gain:
        bias_ms = self.self_error * abs(saved_ms)
        error_ms = (
            MODEL_ERROR * abs(saved_ms) + LEAST_ERROR * self.recorded_ms
            + 2 * self.scatter_ms + bias_ms + more_ms
        )  # fmt: skip
        return Gain(fix, setting, self.recorded_ms, self.recorded_ms - saved_ms, error_ms)

    def _saved(self, steps: Steps, link: Link, factor: float = 1.0) -> float:
        """With the unchanged steps on a link of `factor`, too: the error of the fit moves both."""
        base = (
            self.unchanged_ms
            if factor == 1.0
            else float(replay(self.steps, self.link.faster(factor)).step_ms.mean())
        )
        return base - float(replay(steps, link).step_ms.mean())

    def accumulated(self, micro: Steps, optimizer_ms: float) -> Gain:
        """Of N micro-batches one is reduced; the others have no reduction and no optimizer."""
        alone_ms = float(replay(micro, self.link).step_ms.mean()) - optimizer_ms
        share = (ACCUMULATED - 1) / ACCUMULATED
        saved = share * (self.unchanged_ms - alone_ms)
        return self._gain(Fix.ACCUMULATE, f"{ACCUMULATED} micro-batches a reduction", saved, 0.0)


def _all(played: Playing, calls: CallsOfStep, models: tuple[ModelGroup, ...]) -> Iterator[Gain]:
    best = _best_buckets(played, models)
    if best is not None:
        yield best
    yield _accumulation(played, calls)
    yield _compression(played, models)
    if calls.steps.blocks.any():
        yield played.gain(Fix.NO_EXTRAS, "none", calls.steps.without(calls.steps.blocks))
    yield played.gain(
        Fix.FASTER_LINK, f"{FASTER:.0f} times the bandwidth", calls.steps,
        played.link.faster(FASTER),
    )  # fmt: skip


def _best_buckets(played: Playing, models: tuple[ModelGroup, ...]) -> Gain | None:
    """The cap with the shortest step; None where the buckets cannot be cut another way."""
    steps = played.steps
    first = int(steps.buckets[0])
    if steps.blocks[first:].any():
        return None
    total = float(steps.nbytes[first:].sum())
    parameters = parameter_bytes(models, total)
    tried = [
        played.gain(Fix.BUCKET_SIZE, f"bucket_cap_mb={cap}", steps.rebucketed(sizes))
        for cap in CAPS_MB
        if len(sizes := bucket_sizes(parameters, total, cap)) != len(steps.buckets)
    ]
    return min(tried, key=lambda gain: gain.after_ms, default=None)


def _accumulation(played: Playing, calls: CallsOfStep) -> Gain:
    """Under `no_sync` buffers are not broadcast either; what the user calls stays."""
    steps = calls.steps
    broadcast = calls.rows["op"].to_numpy()[steps.call] == Op.BROADCAST
    return played.accumulated(steps.without(~steps.blocks | broadcast), calls.optimizer_ms)


def _compression(played: Playing, models: tuple[ModelGroup, ...]) -> Gain:
    halved = played.steps.scaled(COMPRESSED)
    on_cpu = any(group.info.measured for group in models) or not models
    cast_ms = played.steps.nbytes / (CAST_GB_PER_S * 1e6) if on_cpu else 0 * played.steps.nbytes
    return played.gain(Fix.COMPRESS, "fp16_compress_hook", _with_work(halved, cast_ms))


def _with_work(steps: Steps, more_ms: Floats) -> Steps:
    """With that much work of every rank before each of its buckets."""
    from dataclasses import replace

    own = steps.own_ms.copy()
    own[:, :, :-1] += np.where(steps.blocks, 0.0, more_ms)
    return replace(steps, own_ms=own)
