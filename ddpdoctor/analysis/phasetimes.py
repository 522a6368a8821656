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
_TERMS = (*(phase.label for phase in STEP_PHASES), "step")
_PARTS = tuple(part.label for part in STEP_PARTS)


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

    def means(name: str) -> list[float | None]:
        """Not measured is UNKNOWN: in all of a rank's steps, or of what is overlapped in some."""
        column = steps[f"{name}_ns"].to_numpy()[rows]
        known = column >= 0
        number = np.add.reduceat(known.astype(np.int64), first)
        total = np.add.reduceat(np.where(known, column, 0), first)
        enough = number > 0 if name == "overlapped" else number == counts
        mean = total / np.maximum(number, 1) / _NS_PER_MS
        return [float(ms) if told else None for ms, told in zip(mean, enough, strict=True)]

    of_name = {name: means(name) for name in (*_TERMS, "overlapped", *_PARTS)}
    return {
        int(rank): (int(count), _times({name: of_name[name][row] for name in of_name}, split))
        for row, (rank, count) in enumerate(zip(ranks, counts, strict=True))
    }


def _times(means: dict[str, float | None], split: bool) -> PhaseTimes:
    known = {name: means[name] or 0.0 for name in _TERMS}
    return PhaseTimes(
        input_ms=known["input"],
        forward_ms=known["forward"],
        backward_ms=known["backward"],
        blocked_ms=known["wait"] + known["transfer"],
        wait_ms=known["wait"] if split else None,
        transfer_ms=known["transfer"] if split else None,
        optimizer_ms=known["optimizer"],
        between_ms=known["between"],
        step_ms=known["step"],
        overlapped_ms=means["overlapped"] if split else None,
        **{f"{name}_ms": means[name] for name in _PARTS},
    )
