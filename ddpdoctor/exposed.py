"""The transfer that a step waits for, as the checks of communication judge it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddpdoctor.analysis.gaintypes import BucketUse, Fix, Gain
from ddpdoctor.analysis.model import Analysis, LinkFit
from ddpdoctor.checks import NotEnoughData, need_steps

STEPS_NEEDED: Final = 5
BUNCHED_AFTER: Final = 0.9  # of backward: what comes later leaves nothing to hide behind
CUT_EXPLAINS: Final = 0.5  # of what could be hidden
MEASURE_NEXT: Final = "`ddpdoctor check --network` under torchrun measures it before a run"


@dataclass(frozen=True)
class Exposed:
    """Milliseconds a step. `gradients_ms` is the transfer without that of extra calls."""

    link: LinkFit
    transfer_ms: float
    gradients_ms: float
    step_ms: float
    latency_share: float  # of the transfer

    @property
    def bytes_ms(self) -> float:
        """What grows with the bytes."""
        return self.gradients_ms * (1 - self.latency_share)

    @property
    def latency_ms(self) -> float:
        """What grows with the number of messages."""
        return self.gradients_ms * self.latency_share


def exposed(run: Analysis) -> Exposed:
    """Raises NotEnoughData where transfer, or what it consists of, is not known."""
    if run.world_size == 1:
        raise NotEnoughData("a single rank sends nothing")
    need_steps(run, STEPS_NEEDED)
    transfers = [times.transfer_ms for times in run.times if times.transfer_ms is not None]
    step_ms = run.step_ms
    if run.link is None or step_ms is None or len(transfers) < len(run.times):
        raise NotEnoughData("transfer is not measured: clocks differ, or no all-reduce was seen")
    if not run.has_all_ranks or len(run.times) < len(run.ranks):
        raise NotEnoughData("ranks are missing, so their lateness would be taken for transfer")
    if run.link.latency_share is None:
        raise NotEnoughData(
            f"no small message in the run tells latency from bandwidth; {MEASURE_NEXT}"
        )
    # The least is what every rank pays; the rest of a larger one is another rank's late return.
    transfer_ms = min(transfers)
    extras_ms = sum(extra.transfer_ms for extra in run.calls.extras) if run.calls else 0.0
    gradients_ms = max(0.0, transfer_ms - extras_ms)
    return Exposed(run.link, transfer_ms, gradients_ms, step_ms, run.link.latency_share)


def hideable_of_buckets(run: Analysis) -> float:
    """How much of it backward could hide if gradients were ready evenly, from its beginning on.

    0 where other buckets would not bring that about, so that DD203 has nothing to say.
    """
    use = run.calls.buckets if run.calls else None
    if use is None or run.moved_by_the_cpu:
        return 0.0
    return hideable_ms(use) if is_bunched(use) or _is_cut(run, use) else 0.0


def hideable_ms(use: BucketUse) -> float:
    return max(0.0, use.exposed_ms - max(0.0, use.transfer_ms - use.backward_ms))


def is_bunched(use: BucketUse) -> bool:
    """Whether even the first of several buckets comes at the very end of backward."""
    return len(use.nbytes) > 1 and use.ready_share[0] >= BUNCHED_AFTER


def _is_cut(run: Analysis, use: BucketUse) -> bool:
    """Whether more buckets than now hide most of what can be hidden."""
    gain = run.gains.of(Fix.BUCKET_SIZE)
    if gain is None or not gain.is_sure:
        return False
    return gain.saved_ms >= CUT_EXPLAINS * hideable_ms(use) and _makes_more(gain, use)


def _makes_more(gain: Gain, use: BucketUse) -> bool:
    cap_bytes = float(gain.setting.partition("=")[2] or 0) * 2**20
    return cap_bytes < max(use.nbytes)


def gain_said(gain: Gain | None, run: Analysis) -> str:
    """A sentence on what it saves, or on why that is not known."""
    if gain is not None and gain.is_sure:
        return f"By a replay of the recorded steps, {gain}."
    if gain is not None:
        return "By a replay of the recorded steps that gains nothing that is sure."
    if run.gains.reason is not None:
        return f"What it gains is not known: {run.gains.reason}."
    return "What it gains was not predicted."
