"""The few numbers that sum a run up. None is not measured."""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import mean

from ddpdoctor.analysis.model import Analysis


@dataclass(frozen=True)
class Headline:
    """Means over measured ranks and counted steps; shares are of the step."""

    step_ms: float | None
    trained_share: float | None  # forward, backward and optimizer
    wait_ms: float | None
    wait_share: float | None
    transfer_ms: float | None
    transfer_share: float | None
    blocked_ms: float | None
    input_ms: float | None  # of the rank that waits longest
    input_rank: int | None
    hidden_share: float | None  # of the time in which a transfer was under way


def headline(analysis: Analysis) -> Headline:
    times = analysis.times
    if not times:
        return Headline(*[None] * len(fields(Headline)))
    step_ms = mean(each.step_ms for each in times)
    wait_ms = _mean_known([each.wait_ms for each in times])
    transfer_ms = _mean_known([each.transfer_ms for each in times])
    overlapped_ms = _mean_known([each.overlapped_ms for each in times])
    trained = mean(each.forward_ms + each.backward_ms + each.optimizer_ms for each in times)
    input_ms, input_rank = max(
        (stats.times.input_ms, -stats.rank) for stats in analysis.ranks if stats.times is not None
    )
    return Headline(
        step_ms=step_ms,
        trained_share=_share(trained, step_ms),
        wait_ms=wait_ms,
        wait_share=_share(wait_ms, step_ms),
        transfer_ms=transfer_ms,
        transfer_share=_share(transfer_ms, step_ms),
        blocked_ms=mean(each.blocked_ms for each in times),
        input_ms=input_ms,
        input_rank=-input_rank,
        hidden_share=_hidden(overlapped_ms, transfer_ms),
    )


def _mean_known(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None


def _hidden(overlapped_ms: float | None, transfer_ms: float | None) -> float | None:
    if overlapped_ms is None or transfer_ms is None:
        return None
    return _share(overlapped_ms, overlapped_ms + transfer_ms)
