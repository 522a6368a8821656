"""What course a number takes over the steps: stalls at regular intervals, and drift."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

BASE_QUANTILE = 0.25  # what is usual, also where nearly each second step is a stall
NOISE_TIMES = 10.0  # a stall stands out by so many spreads of the lower half: 3 sigma of noise
STALL_SHARE = 0.25  # and by a quarter of the usual step
LEAST_STALL_MS = 2.0  # shorter ones are the scheduler's on a busy host
STALLS_NEEDED = 4  # three equal intervals; two are equal by chance now and then
STALLS_IN_TIME = 6  # intervals in seconds are less sharp, so it takes more of them
ON_TIME = 0.8  # of the stalls' time lies at the regular moments, and as many have a stall
BY_CHANCE = 1e-3  # at most, for stalls at random moments to lie as regularly
LONGEST_PERIOD = 0.34  # of the steps seen: less than three of a period show nothing
SECONDS_DIFFER = 0.1  # an interval in seconds ends with a step, so it varies by about a step
BLOCKS = 20  # medians over blocks: a stall or two change none of them
DRIFT_STEPS = 30  # fewer, and what settles late looks like drift
LEAST_SIDE = 4  # blocks before and after a change
RISES = 0.6  # Kendall's tau of the blocks; noise reaches it once in 10^4 runs
STAYS = 0.5  # of the rise is still there at the end: what goes away was a disturbance


@dataclass(frozen=True)
class Period:
    """Stalls at regular intervals, in steps or else in seconds."""

    every_steps: int | None
    every_s: float | None
    stalls: int
    stall_ms: float  # mean, over what is usual
    on_time: float  # share of all stalls' time that lies at these moments


@dataclass(frozen=True)
class Stalls:
    """Steps that stand out, and by how much they do."""

    at: Ints  # indices
    over_ms: Floats  # (stall,)

    @property
    def total_ms(self) -> float:
        return float(self.over_ms.sum())


@dataclass(frozen=True)
class Rise:
    """A number that becomes larger and stays so. `since` is an index into the steps."""

    since: int | None  # None: little by little
    before: float
    after: float
    added: float  # mean over all steps, against what it was before
    tau: float  # of Kendall, over blocks of steps; 1: always larger than before


def stalls(series: Floats, usual_step_ms: float) -> Stalls:
    """Steps in which a series stands out of what is usual for it."""
    if not len(series):
        return Stalls(np.empty(0, np.int64), np.empty(0))
    base = float(np.quantile(series, BASE_QUANTILE))
    lower = series[series <= np.median(series)]
    spread = float(np.median(np.abs(lower - base)))
    least = max(LEAST_STALL_MS, STALL_SHARE * usual_step_ms, NOISE_TIMES * spread)
    over = series - base
    at = np.flatnonzero(over > least)
    return Stalls(at, over[at])


def period(found: Stalls, syncs: Ints, begin_ms: Floats) -> Period | None:
    """The regular interval of stalls, None where there is none. Steps go before seconds."""
    if len(found.at) < STALLS_NEEDED:
        return None
    return _in_steps(found, syncs) or _in_seconds(found, begin_ms)


def _in_steps(found: Stalls, syncs: Ints) -> Period | None:
    """Every n-th step: of all residues of n one has nearly all stalls, and is nearly full."""
    at = syncs[found.at]
    gaps, counts = np.unique(np.diff(at), return_counts=True)
    longest = (syncs[-1] - syncs[0] + 1) * LONGEST_PERIOD
    likely = gaps[np.argsort(-counts, kind="stable")][:8]
    tried = longest * (longest + 1) / 2  # residues of all intervals
    for every in sorted(int(gap) for gap in likely if 1 < gap <= longest):
        over = np.bincount(at % every, weights=found.over_ms, minlength=every)
        residue = int(over.argmax())
        hits = at % every == residue
        chances = int((syncs % every == residue).sum())
        share = float(over[residue] / found.total_ms)
        count = int(hits.sum())
        full = count >= max(STALLS_NEEDED, ON_TIME * chances)
        chance = tried * _in_slots(count, chances, len(at), len(syncs))
        if share >= ON_TIME and full and chance <= BY_CHANCE:
            mean_ms = float(found.over_ms[hits].mean())
            return Period(every, None, count, mean_ms, share)
    return None


def _in_seconds(found: Stalls, begin_ms: Floats) -> Period | None:
    if len(found.at) < STALLS_IN_TIME:
        return None
    gaps = np.diff(begin_ms[found.at])
    usual = float(np.median(gaps))
    a_step = float(np.median(np.diff(begin_ms)))
    within = SECONDS_DIFFER * usual + a_step
    near = np.abs(gaps - usual) <= within
    seen = float(begin_ms[-1] - begin_ms[0])
    long = usual >= 4 * a_step  # else any interval would fit
    if not long or near.mean() < ON_TIME or usual > LONGEST_PERIOD * seen:
        return None
    # Stalls at random moments are apart by the length of one, and a time of exponential law.
    least = a_step + float(found.over_ms.mean())
    mean = max(a_step, float(gaps.mean()) - least)
    between = np.maximum(0.0, usual + np.array([-within, within]) - least)
    likely = float(-np.diff(np.exp(-between / mean))[0])
    if _of_trials(int(near.sum()) - 1, len(gaps) - 1, likely) > BY_CHANCE:  # but the median itself
        return None
    mean_ms = float(found.over_ms.mean())
    return Period(None, usual / 1e3, len(found.at), mean_ms, float(near.mean()))


def _in_slots(hits: int, slots: int, drawn: int, of: int) -> float:
    """Probability that at least so many of the steps drawn at random lie in some slots.

    Of the hypergeometric distribution: its first term, and a geometric series for the others.
    """
    rest = of - slots
    ratio = (slots - hits) * (drawn - hits) / ((hits + 1) * (rest - drawn + hits + 1))
    first = _log_choose(slots, hits) + _log_choose(rest, drawn - hits) - _log_choose(of, drawn)
    return _tail(first, ratio)


def _of_trials(hits: int, trials: int, likely: float) -> float:
    """Probability of at least so many hits, of the binomial distribution, in the same way."""
    if not 0 < likely < 1:
        return likely
    first = _log_choose(trials, hits) + hits * math.log(likely)
    first += (trials - hits) * math.log1p(-likely)
    return _tail(first, (trials - hits) / (hits + 1) * likely / (1 - likely))


def _tail(first_log: float, ratio: float) -> float:
    return min(1.0, math.exp(first_log) / (1 - ratio)) if ratio < 1 else 1.0


def _log_choose(of: int, count: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)


def rise(series: Floats, least: float) -> Rise | None:
    """A rise by at least so much that lasts to the end; None where there is none."""
    if len(series) < DRIFT_STEPS:
        return None
    edges, blocks = _edges(len(series)), block_medians(series)
    sudden, gradual = _sudden(blocks), _gradual(blocks)
    if sudden is not None and (gradual is None or _fits_better(blocks, sudden)):
        before, after = float(blocks[:sudden].mean()), float(blocks[sudden:].mean())
        since: int | None = _exactly(series, int(edges[sudden]), before, after)
    elif gradual is not None:
        before, after, since = *gradual, None
    else:
        return None
    if after - before < least or blocks[-LEAST_SIDE:].mean() - before < STAYS * (after - before):
        return None
    added = float(np.mean(series) - before)
    return Rise(since, before, after, max(0.0, added), _tau(blocks))


def _edges(count: int) -> Ints:
    return np.linspace(0, count, BLOCKS + 1).astype(np.int64)


def block_medians(series: Floats) -> Floats:
    """Of BLOCKS stretches of as many steps each; needs at least as many steps."""
    pairs = itertools.pairwise(_edges(len(series)))
    return np.array([np.median(series[first:end]) for first, end in pairs])


def _sudden(blocks: Floats) -> int | None:
    """The first block of a higher level: nearly all after it are above nearly all before."""
    best, chosen = 0.0, None
    for split in range(LEAST_SIDE, BLOCKS - LEAST_SIDE + 1):
        low, high = np.sort(blocks[:split]), np.sort(blocks[split:])
        apart = float(high[len(high) // 10] - low[-1 - len(low) // 10])
        step = float(np.median(high) - np.median(low))
        if apart > 0 and step > best:
            best, chosen = step, split
    return chosen


def _gradual(blocks: Floats) -> tuple[float, float] | None:
    """Where a line through the blocks begins and ends (Theil-Sen)."""
    if _tau(blocks) < RISES:
        return None
    place = np.arange(BLOCKS)
    left, right = np.triu_indices(BLOCKS, 1)
    slope = float(np.median((blocks[right] - blocks[left]) / (right - left)))
    begin = float(np.median(blocks - slope * place))
    return begin, begin + slope * (BLOCKS - 1)


def _tau(blocks: Floats) -> float:
    left, right = np.triu_indices(len(blocks), 1)
    return float(np.sign(blocks[right] - blocks[left]).mean())


def _fits_better(blocks: Floats, split: int) -> bool:
    """Two levels against a line, by how far the blocks are from them in all."""
    place = np.arange(BLOCKS)
    begin, end = _gradual(blocks) or (0.0, 0.0)
    line = begin + (end - begin) * place / (BLOCKS - 1)
    level = np.where(place < split, np.median(blocks[:split]), np.median(blocks[split:]))
    return bool(np.abs(blocks - level).sum() < np.abs(blocks - line).sum())


def _exactly(series: Floats, near: int, before: float, after: float) -> int:
    """The step of the change, to within a block."""
    width = 2 * (len(series) // BLOCKS + 1)
    begin, end = max(0, near - width), min(len(series), near + width)
    high = np.cumsum(np.where(series[begin:end] > (before + after) / 2, 1, -1))
    return begin + int(np.argmin(np.concatenate([[0], high])))
