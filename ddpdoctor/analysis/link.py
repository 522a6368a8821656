"""What the network costs a step: latency (alpha) and bandwidth (beta), waiting taken out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import LATENCY_ONLY, LinkFit, StepRange
from ddpdoctor.analysis.numbered import CallsOfRanks, Numbered, key_of
from ddpdoctor.analysis.replay import AT_ONCE, Link, transfers
from ddpdoctor.analysis.spent import rows_of
from ddpdoctor.baseline import NetworkBaseline
from ddpdoctor.events import Flag, Op
from ddpdoctor.tables import Tables

SMALL_BYTES: Final = 64 * 1024  # a message up to here is latency, not bandwidth, from 0.1 GB/s on
TINY_BYTES: Final = 8 * 1024  # latency on any link: at 100 Mbit/s the bytes take 0.7 ms
SIZES_APART: Final = 4  # largest to smallest message from which an intercept can be read
_MOST_POINTS: Final = 150  # of a Theil-Sen fit, which compares all pairs
_MOST_STEPS: Final = 64  # replayed for the rate
_RATE_ERROR: Final = 0.001  # relative: where the search for the rate ends
_NS_PER_MS: Final = 1e6
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def fit_link(
    tables: Tables,
    steps: StepRange,
    world_size: int,
    backend: str = "gloo",
    baseline: NetworkBaseline | None = None,
) -> LinkFit | None:
    """None where no all-reduce between ranks was seen whole."""
    if world_size < 2:
        return None
    per_step = _all_reduces(tables, steps)
    if per_step.empty:
        return None
    at_once = AT_ONCE.get(backend, 1)
    per_step = _with_busy(per_step)
    tiny = per_step["nbytes"] <= TINY_BYTES
    per_step = per_step.assign(tiny=per_step["covered"].where(tiny, 0))
    counts = per_step.groupby("sync_of_step").agg(
        collectives=("seq", "size"), nbytes=("nbytes", "sum"), busy=("covered", "sum"),
        tiny=("tiny", "sum"),
    )  # fmt: skip
    busy_ms = float(counts["busy"].median()) / _NS_PER_MS
    collectives = float(counts["collectives"].median())
    nbytes = float(counts["nbytes"].median())
    alpha_ms = _alpha_ms(tables, per_step, baseline)
    moved_ms = busy_ms - float(counts["tiny"].median()) / _NS_PER_MS
    rate = None
    if alpha_ms is not None:
        rate = _bytes_per_ms(per_step[~tiny], moved_ms, Link(alpha_ms, 1.0, at_once))
    latency_ms = busy_ms - nbytes / rate if rate is not None else busy_ms
    beta = rate / 1e6 if rate is not None else None
    factor = 2 * (world_size - 1) / world_size
    return LinkFit(
        alpha_ms,
        beta,
        beta * factor if beta is not None else None,
        max(0.0, latency_ms) / busy_ms if alpha_ms is not None and busy_ms > 0 else None,
        busy_ms,
        collectives,
        nbytes,
        at_once,
    )


def _bytes_per_ms(large: pd.DataFrame, busy_ms: float, link: Link) -> float | None:
    """The rate at which the calls of a step, begun as recorded, keep the link busy for so long;
    None where latency alone takes that time. By replay, as latencies of messages under way
    together hide each other, or do not: that depends on when each begins."""
    steps = _alike(large)
    if steps is None or busy_ms <= 0:
        return None
    begins, nbytes = steps

    def busy(rate: float) -> float:
        done = transfers(begins, nbytes, replace(link, bytes_per_ms=rate))
        return float(np.median(_covered(begins, done)))

    least = float(nbytes.sum()) / busy_ms
    low, high = math.log(least), math.log(least * LATENCY_ONLY)
    if busy(math.exp(high)) >= busy_ms:
        return None
    while high - low > _RATE_ERROR:
        middle = (low + high) / 2
        low, high = (low, middle) if busy(math.exp(middle)) < busy_ms else (middle, high)
    return math.exp((low + high) / 2)


def _alike(large: pd.DataFrame) -> tuple[Floats, Floats] | None:
    """Steps with calls of the same sizes, the form that most have: when each call begins (ms,
    steps by calls), and their bytes."""
    if large.empty:
        return None
    forms: dict[tuple[int, ...], list[Floats]] = {}
    begin, nbytes = large["begin"].to_numpy(), large["nbytes"].to_numpy()
    sync = large["sync_of_step"].to_numpy()
    first = np.flatnonzero(np.append(True, sync[1:] != sync[:-1])[: len(sync)])
    for begins_at, ends_at in zip(first, np.append(first[1:], len(sync)), strict=True):
        own = begin[begins_at:ends_at]
        form = tuple(nbytes[begins_at:ends_at].tolist())
        forms.setdefault(form, []).append((own - own[0]) / _NS_PER_MS)
    form, begins = max(forms.items(), key=lambda item: len(item[1]))
    at = np.unique(np.linspace(0, len(begins) - 1, _MOST_STEPS).astype(int))
    return np.stack([begins[i] for i in at]), np.array(form, np.float64)


def _covered(begins: Floats, ends: Floats) -> Floats:
    """How long at least one message of each step is under way."""
    reach = np.maximum.accumulate(ends, axis=1)
    before = np.concatenate([begins[:, :1], reach[:, :-1]], axis=1)
    return np.asarray(np.clip(reach - np.maximum(begins, before), 0, None).sum(axis=1))


def _all_reduces(tables: Tables, steps: StepRange) -> pd.DataFrame:
    """One row a collective and step: completed when its last rank has it."""
    first = int(tables.steps["rank"].iloc[0])
    own_steps = rows_of(tables.steps, first)
    syncs = own_steps.drop_duplicates("step").set_index("step")["sync"]
    own = tables.calls.of_rank(first)
    flags = own["flags"].to_numpy()
    partly = own["step"].to_numpy()[(flags & int(Flag.UNTIMED)) > 0]
    own = own[
        (own["op"] == Op.ALL_REDUCE) & (own["step"] >= 0) & own["complete"]
        & (own["transfer_ns"] >= 0) & ~own["step"].isin(np.unique(partly))
    ]  # fmt: skip
    own = own.assign(sync_of_step=own["step"].map(syncs))
    own = own[own["sync_of_step"].between(steps.first_sync, steps.last_sync)]
    whole = own[["group", "seq", "sync_of_step", "nbytes", "last_arrival_ns"]].rename(
        columns={"last_arrival_ns": "begin"}
    )
    return whole.assign(end=_ends(tables, own)).dropna(subset="sync_of_step")


def _ends(tables: Tables, own: pd.DataFrame) -> Ints:
    """When the last rank had each of these calls."""
    latest = own["completion_ns"].to_numpy(np.int64).copy()
    wanted = key_of(own["group"].to_numpy(), own["seq"].to_numpy())
    calls = CallsOfRanks(tables, "completion_ns")
    before: Numbered | None = None
    for rank in tables.calls.ranks:
        numbered, (completion,) = calls.of(rank)
        if numbered is not before:
            rows, found = numbered.find(wanted)
            before = numbered
        np.maximum(latest, np.where(found, completion[rows], -1), out=latest)
    return latest


def _with_busy(reduces: pd.DataFrame) -> pd.DataFrame:
    """Per call the time that it adds to what earlier ones of its step cover; `alone` where no
    other was under way."""
    ordered = reduces.sort_values(["sync_of_step", "begin"], ignore_index=True)
    by_step = ordered["sync_of_step"]
    reach = ordered.groupby("sync_of_step")["end"].cummax()
    before = reach.groupby(by_step).shift(fill_value=0)
    covered = (reach - np.maximum(ordered["begin"], before)).clip(lower=0)
    opens = ordered["begin"] >= before
    following = opens.groupby(by_step).shift(-1, fill_value=True)
    return ordered.assign(covered=covered, alone=opens & following)


def _alpha_ms(
    tables: Tables, per_step: pd.DataFrame, baseline: NetworkBaseline | None
) -> float | None:
    """What a small message takes: by those of the run, by how its sizes differ, or as measured
    before the run."""
    (nbytes,) = tables.calls.recorded("nbytes")
    small = tables.calls.where(
        (nbytes <= SMALL_BYTES) & (nbytes > 0), "group", "seq", "complete", "transfer_ns"
    )
    small = small[(small["transfer_ns"] >= 0) & small["complete"]]
    if len(small):
        slowest = small.groupby(["group", "seq"])["transfer_ns"].max()
        return float(slowest.median()) / _NS_PER_MS
    alone = per_step[per_step["alone"]]
    by_sizes = intercept(
        alone["nbytes"].to_numpy(np.float64),
        (alone["end"] - alone["begin"]).to_numpy(np.float64) / _NS_PER_MS,
    )
    if by_sizes is not None:
        return by_sizes
    return baseline.alpha_ms if baseline is not None else None


def intercept(nbytes: Floats, taken_ms: Floats) -> float | None:
    """Theil-Sen: what a message of no bytes would take; None where the sizes are too alike."""
    if len(nbytes) < 2 or nbytes.max() < SIZES_APART * max(1.0, nbytes.min()):
        return None
    at = np.unique(np.linspace(0, len(nbytes) - 1, _MOST_POINTS).astype(int))
    order = at[np.argsort(nbytes[at], kind="stable")]
    x, y = nbytes[order], taken_ms[order]
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] > x[one]
    if not apart.any():
        return None
    slope = np.median((y[other] - y[one])[apart] / (x[other] - x[one])[apart])
    return max(0.0, float(np.median(y - slope * x)))
