"""Mean times of each rank over the counted steps, all ranks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import PhaseTimes, StepRange
from ddpdoctor.parts import STEP_PARTS
from ddpdoctor.tables import STEP_PHASES

Ints = npt.NDArray[np.int64]
_NS_PER_MS = 1e6


def phase_times(
    steps: pd.DataFrame, counted: StepRange, *, split: bool
) -> dict[int, tuple[int, PhaseTimes]]:
    """How many counted steps each rank has, and its times; ranks without one are left out.

    `split` says whether waiting and transfer can be told apart.
    """
    sync = steps["sync"].to_numpy()
    rows = np.flatnonzero((sync >= counted.first_sync) & (sync <= counted.last_sync))
    ranks, first, counts = np.unique(
        steps["rank"].to_numpy()[rows], return_index=True, return_counts=True
    )
    if not len(ranks):
        return {}

    def sums(values: Ints) -> Ints:
        return np.add.reduceat(values, first)

    def column(name: str) -> Ints:
        return np.asarray(steps[f"{name}_ns"].to_numpy()[rows])

    spent = {phase.label: sums(column(phase.label)) / counts / _NS_PER_MS for phase in STEP_PHASES}
    spent["step"] = sums(column("step")) / counts / _NS_PER_MS
    overlapped = column("overlapped")
    timed = sums((overlapped >= 0).astype(np.int64)) * split
    hidden = sums(np.maximum(overlapped, 0)) / np.maximum(timed, 1) / _NS_PER_MS
    parts = {part.label: column(part.label) for part in STEP_PARTS}
    means = {name: sums(values) / counts / _NS_PER_MS for name, values in parts.items()}
    measured = {name: np.minimum.reduceat(values, first) >= 0 for name, values in parts.items()}

    def of(row: int) -> PhaseTimes:
        own = {name: float(values[row]) for name, values in spent.items()}
        return PhaseTimes(
            input_ms=own["input"],
            forward_ms=own["forward"],
            backward_ms=own["backward"],
            blocked_ms=own["wait"] + own["transfer"],
            wait_ms=own["wait"] if split else None,
            transfer_ms=own["transfer"] if split else None,
            optimizer_ms=own["optimizer"],
            between_ms=own["between"],
            step_ms=own["step"],
            overlapped_ms=float(hidden[row]) if timed[row] else None,
            **{
                f"{name}_ms": float(means[name][row]) if measured[name][row] else None
                for name in parts
            },
        )

    return {int(rank): (int(counts[row]), of(row)) for row, rank in enumerate(ranks)}
