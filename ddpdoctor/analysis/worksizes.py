"""How large the batches of each step were, and whether the ranks' lateness follows that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.shapes import BLOCKS, block_medians
from ddpdoctor.analysis.stepwise import over_others
from ddpdoctor.modelevents import BatchRun
from ddpdoctor.tracefile import RankTrace, Run

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SIZES = ("elements", "samples")  # of a step's batches, the finer one first
FOLLOWS_STEPS = 8  # fewer points of each rank line up by chance


@dataclass(frozen=True)
class WorkFit:
    """How closely one number follows the size of the batches, over ranks and steps."""

    size: str  # of SIZES
    r: float  # Pearson
    steps: int
    largest: float  # mean over the steps of the largest batch / the mean of the ranks'


def work_sizes(run: Run, ranks: Ints, syncs: Ints) -> dict[str, Floats]:
    """(rank, step) for each of SIZES, NaN where it was not recorded.

    Only where a rank trains one model: reductions of several are counted each on its own.
    """
    traces = {trace.info.rank: trace for trace in run.ranks}
    chosen = [traces[int(rank)] for rank in ranks]
    return {name: np.stack([_of_rank(trace, syncs, name) for trace in chosen]) for name in SIZES}


def _of_rank(trace: RankTrace, syncs: Ints, name: str) -> Floats:
    sizes = np.full(len(syncs), np.nan)
    batches = trace.model.batches
    if len(batches) != 1:
        return sizes
    (runs,) = batches.values()
    for run in runs:
        begin, end = np.searchsorted(syncs, (run.sync, run.sync + run.syncs))
        sizes[begin:end] = _size(run, name)
    return sizes


def _size(run: BatchRun, name: str) -> int:
    return run.elements if name == "elements" else run.samples


def follows(lateness_ms: Floats, sizes: dict[str, Floats]) -> WorkFit | None:
    """The closest fit of the ranks' differences in lateness to those in size; None: no size."""
    fits = [fit for name, size in sizes.items() if (fit := _fit(lateness_ms, size, name))]
    return max(fits, key=lambda fit: fit.r, default=None)


def _fit(lateness_ms: Floats, size: Floats, name: str) -> WorkFit | None:
    known = np.isfinite(size).all(axis=0)
    if known.sum() < FOLLOWS_STEPS:
        return None
    more, late = over_others(size[:, known]), lateness_ms[:, known]
    if not more.std() or not late.std():
        return None
    r = float(np.corrcoef(more.ravel(), late.ravel())[0, 1])
    ratio = size[:, known].max(axis=0) / np.maximum(size[:, known].mean(axis=0), 1e-9)
    return WorkFit(name, r, int(known.sum()), float(ratio.mean()))


def grows_with(series: Floats, sizes: dict[str, Floats], least_r: float) -> bool:
    """Whether a number of the job follows the mean batch of its ranks, over blocks of steps."""
    for size in sizes.values():
        known = np.isfinite(size).all(axis=0)
        if known.sum() < BLOCKS:
            continue
        mean, some = block_medians(size[:, known].mean(axis=0)), block_medians(series[known])
        if mean.std() and some.std() and np.corrcoef(mean, some)[0, 1] >= least_r:
            return True
    return False


def size_ratio(sizes: dict[str, Floats], row: int) -> float | None:
    """A rank's mean batch against the median of the others'; None where it is not known."""
    for size in sizes.values():
        known = np.isfinite(size).all(axis=0)
        if known.any() and len(size) > 1:
            mean = size[:, known].mean(axis=1)
            others = float(np.median(np.delete(mean, row)))
            return float(mean[row]) / others if others else None
    return None
