"""How much of a step trains, as factors that multiply: the POP metrics, for training.

POP splits parallel efficiency (useful time / run time) into load balance, serialisation and
transfer efficiency. Useful is forward, backward and optimizer; input and what lies between the
steps are a factor of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ddpdoctor.analysis.model import PhaseTimes


@dataclass(frozen=True)
class Efficiency:
    """Shares; `total` is the product of the other four."""

    total: float  # of a step, on the mean rank
    useful: float  # of a rank's own time: the rest is input and what lies between
    balance: float  # the mean rank's own time / the longest: lost to ranks that are always late
    turns: float  # the longest / a step without transfer: lost to ranks that are late in turn
    transfer: float  # a step without transfer / the step


def efficiency(times: Sequence[PhaseTimes]) -> Efficiency | None:
    """None where waiting and transfer are not told apart, or nothing was measured.

    Transfer is the least of any rank: what is longer elsewhere is a rank that came back late.
    """
    transfers = [each.transfer_ms for each in times if each.transfer_ms is not None]
    if not times or len(transfers) < len(times):
        return None
    step = max(each.step_ms for each in times)
    trained = [each.forward_ms + each.backward_ms + each.optimizer_ms for each in times]
    own = [t + each.input_ms + each.between_ms for t, each in zip(trained, times, strict=True)]
    without_transfer = step - min(transfers)
    if min(step, without_transfer, mean(own)) <= 0:
        return None
    return Efficiency(
        mean(trained) / step,
        mean(trained) / mean(own),
        mean(own) / max(own),
        max(own) / without_transfer,
        without_transfer / step,
    )
