"""What each bucket of DDP costs: how far its arrivals lie apart, how it moves, what shows of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.events import Flag, Phase
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]

SPREAD_QUANTILE = 0.95
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class BucketStats:
    """One bucket over the counted steps. None is not measured."""

    group: int
    bucket: int
    nbytes: int
    reductions: int
    spread_ms: float | None  # median of last minus first arrival
    spread_high_ms: float | None  # its SPREAD_QUANTILE
    wait_ms: float | None  # mean over the ranks
    transfer_ms: float | None  # median
    gb_per_s: float | None  # bytes / median transfer, GB = 10^9 bytes
    exposed_ms: float | None  # mean over the ranks: of its transfer, while the thread stood still
    last_rank: int | None  # the one that arrived last most often
    last_share: float | None  # of the reductions
    worst_sync: int | None  # the step with the longest spread
    worst_rank: int | None  # that arrived last in it

    @property
    def key(self) -> tuple[int, int, int]:
        return self.group, self.bucket, self.nbytes


def bucket_stats(analysis: Analysis) -> tuple[BucketStats, ...]:
    """In the order of the buckets; empty where no bucket was told apart."""
    table = _counted(analysis)
    if table.empty:
        return ()
    table = table.assign(exposed_ns=_exposed_ns(table, analysis.tables))
    split = analysis.tables.clock.comparable
    return tuple(
        _stats(own, split) for _, own in table.groupby(["group", "bucket", "nbytes"], sort=True)
    )


def _counted(analysis: Analysis) -> pd.DataFrame:
    """Calls of the reducer that belong to a bucket, in counted steps, with the step's `sync`."""
    tables, steps = analysis.tables, analysis.steps
    calls = tables.collectives
    calls = calls[((calls["flags"] & int(Flag.BUCKET)) > 0) & (calls["bucket"] >= 0)]
    syncs = tables.steps[["rank", "step", "sync"]].drop_duplicates(["rank", "step"])
    joined = calls.drop(columns="sync").merge(syncs, on=["rank", "step"])
    return joined[joined["sync"].between(steps.first_sync, steps.last_sync)]


def _exposed_ns(calls: pd.DataFrame, tables: Tables) -> Ints:
    """Of each call's transfer, the time in which its rank's training thread stood blocked."""
    blocked = tables.segments[tables.segments["phase"].isin((Phase.WAIT, Phase.TRANSFER))]
    exposed = np.zeros(len(calls), np.int64)
    rank = calls["rank"].to_numpy()
    begin = calls[["arrival_ns", "last_arrival_ns"]].to_numpy().max(axis=1)
    end = calls["completion_ns"].to_numpy()
    for number, own in blocked.groupby("rank"):
        mine = rank == number
        edges = np.sort(own[["begin_ns", "end_ns"]].to_numpy().ravel())
        lengths = np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)
        until = np.concatenate([[0], np.cumsum(lengths)])
        passed = np.interp(end[mine], edges, until) - np.interp(begin[mine], edges, until)
        exposed[mine] = np.maximum(0, passed)
    return exposed


def _stats(own: pd.DataFrame, split: bool) -> BucketStats:
    first = own.iloc[0]
    known = own[own["complete"]] if split else own.iloc[:0]
    timed = known[(known["transfer_ns"] >= 0) & ((known["flags"] & int(Flag.UNTIMED)) == 0)]
    each = known.drop_duplicates("seq")
    spread = (each["last_arrival_ns"] - each["first_arrival_ns"]) / _NS_PER_MS
    counts = each["last_rank"].value_counts()
    worst = each.iloc[int(spread.to_numpy().argmax())] if len(each) else None
    transfer_ms = float(timed["transfer_ns"].median()) / _NS_PER_MS if len(timed) else None
    nbytes = int(first["nbytes"])
    return BucketStats(
        int(first["group"]),
        int(first["bucket"]),
        nbytes,
        int(own["seq"].nunique()),
        float(spread.median()) if len(each) else None,
        float(spread.quantile(SPREAD_QUANTILE)) if len(each) else None,
        float(known["wait_ns"].mean()) / _NS_PER_MS if len(known) else None,
        transfer_ms,
        nbytes / transfer_ms / 1e6 if transfer_ms else None,
        float(timed["exposed_ns"].mean()) / _NS_PER_MS if len(timed) else None,
        int(counts.index[0]) if len(each) else None,
        float(counts.iloc[0]) / len(each) if len(each) else None,
        int(worst["sync"]) if worst is not None else None,
        int(worst["last_rank"]) if worst is not None else None,
    )
