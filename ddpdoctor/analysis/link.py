"""What the network costs a step: latency (alpha) and bandwidth (beta), waiting taken out."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ddpdoctor.analysis.model import LinkFit, StepRange
from ddpdoctor.events import Flag, Op
from ddpdoctor.tables import Tables

SMALL_BYTES = 64 * 1024  # a message up to here is latency, not bandwidth, on links of 0.1 GB/s on
_NS_PER_MS = 1e6


def fit_link(tables: Tables, steps: StepRange, world_size: int) -> LinkFit | None:
    """None where no all-reduce between ranks was seen whole."""
    if world_size < 2:
        return None
    table = tables.collectives
    partly = table.loc[(table["flags"] & int(Flag.UNTIMED)) > 0, "step"].unique()
    table = table[table["complete"] & (table["transfer_ns"] >= 0)]
    per_step = _all_reduces(table[~table["step"].isin(partly)], tables, steps)
    if per_step.empty:
        return None
    counts = per_step.groupby("sync_of_step").agg(
        collectives=("seq", "size"), nbytes=("nbytes", "sum")
    )
    busy_ms = float(_busy_ns(per_step).median()) / _NS_PER_MS
    collectives = float(counts["collectives"].median())
    nbytes = float(counts["nbytes"].median())
    alpha_ms = _alpha_ms(table)
    latency_ms = min(busy_ms, (alpha_ms or 0.0) * collectives)
    moving_s = (busy_ms - latency_ms) / 1e3
    beta = nbytes / moving_s / 1e9 if alpha_ms is not None and moving_s > 0 else None
    factor = 2 * (world_size - 1) / world_size
    return LinkFit(
        alpha_ms,
        beta,
        beta * factor if beta is not None else None,
        latency_ms / busy_ms if alpha_ms is not None and busy_ms > 0 else None,
        busy_ms,
        collectives,
        nbytes,
    )


def _all_reduces(table: pd.DataFrame, tables: Tables, steps: StepRange) -> pd.DataFrame:
    """One row a collective and step: completed when its last rank has it."""
    first = tables.steps["rank"].min()
    syncs = tables.steps[tables.steps["rank"] == first].set_index("step")["sync"]
    reduces = table[table["op"] == Op.ALL_REDUCE]
    whole = (
        reduces.groupby(["group", "seq"])
        .agg(
            begin=("last_arrival_ns", "first"),
            end=("completion_ns", "max"),
            nbytes=("nbytes", "first"),
        )
        .reset_index()
    )
    own = reduces[(reduces["rank"] == first) & (reduces["step"] >= 0)]
    own = own.assign(sync_of_step=own["step"].map(syncs))[["group", "seq", "sync_of_step"]]
    joined = whole.merge(own, on=["group", "seq"])
    return joined[joined["sync_of_step"].between(steps.first_sync, steps.last_sync)]


def _busy_ns(reduces: pd.DataFrame) -> pd.Series:
    """Per step, the time covered by at least one transfer (gloo runs two at once)."""
    ordered = reduces.sort_values(["sync_of_step", "begin"])
    reach = ordered.groupby("sync_of_step")["end"].cummax()
    before = reach.groupby(ordered["sync_of_step"]).shift(fill_value=0)
    begin = np.maximum(ordered["begin"], before)
    covered = (reach - begin).clip(lower=0)
    return covered.groupby(ordered["sync_of_step"]).sum()


def _alpha_ms(table: pd.DataFrame) -> float | None:
    """What a small message takes: the median over the small collectives of the whole run."""
    small = table[(table["nbytes"] <= SMALL_BYTES) & (table["nbytes"] > 0)]
    slowest = small.groupby(["group", "seq"])["transfer_ns"].max()
    return float(slowest.median()) / _NS_PER_MS if len(slowest) else None
