"""Calls of a step beside its gradients, by line and operation; and how its buckets lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.gain import Playing
from ddpdoctor.analysis.gaintypes import BucketUse, ExtraCall, Fix, StepCalls
from ddpdoctor.analysis.model import Analysis, StepRange
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.analysis.spent import rows_of
from ddpdoctor.analysis.stepcalls import CallsOfStep, NoReplay
from ddpdoctor.events import Flag, Op, Phase, Site
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

MOST_EXTRAS: Final = 16  # lines and operations; the dearest
_MAP_ITEM: Final = 4  # bytes a parameter in the map of find_unused_parameters
_OF_CALLS: Final = (
    "rank", "step", "op", "site", "nbytes", "arrival_ns", "wait_ns", "transfer_ns",
)  # fmt: skip
_NS_PER_MS: Final = 1e6
Ints = npt.NDArray[np.int64]


def step_calls(analysis: Analysis, calls: CallsOfStep | NoReplay) -> StepCalls:
    """All that the counted steps call, on average; numbers are of the rank that pays least."""
    tables, link, models = analysis.tables, analysis.link, analysis.models
    extras = _extras(analysis.run, tables, analysis.steps, models)
    if isinstance(calls, NoReplay) or not len(calls.steps.buckets):
        return StepCalls(extras, None, _search_bytes(tables, models))
    known = link.as_link if link is not None else None
    if known is not None:
        played = Playing.of(calls.steps, known)
        extras = tuple(_with_gain(extra, played, calls) for extra in extras)
    return StepCalls(extras, _bucket_use(calls), _search_bytes(tables, models))


def _extras(
    run: Run, tables: Tables, counted: StepRange, models: tuple[ModelGroup, ...]
) -> tuple[ExtraCall, ...]:
    sums = _sums(tables, counted)
    if sums is None:
        return ()
    first = run.ranks[0]
    of_first = sums[sums["rank"] == sums["rank"].iloc[0]].set_index(["op", "site"])
    least = sums.groupby(["op", "site"])["transfer_ns"].min()
    of_first = of_first.assign(transfer_ns=least.reindex(of_first.index))
    dearest = of_first.sort_values("transfer_ns", ascending=False).head(MOST_EXTRAS)
    has_buffers = any(
        group.info.buffer_count and group.info.arguments.get("broadcast_buffers") != "False"
        for group in models
    )
    return tuple(
        ExtraCall(
            Op(int(row["op"])),
            first.sites.get(int(row["site"])),
            bool(row["op"] == Op.BROADCAST and has_buffers and row["forward"] > 0),
            float(row["calls"]),
            float(row["nbytes"]),
            float(row["transfer_ns"]) / _NS_PER_MS,
            float(row["wait_ns"]) / _NS_PER_MS,
        )
        for _, row in dearest.reset_index().iterrows()
    )


def _sums(tables: Tables, counted: StepRange) -> pd.DataFrame | None:
    """By rank, operation and site, per step: calls, bytes, transfer and wait."""
    (flags,) = tables.calls.recorded("flags")
    beside = (flags & int(Flag.BLOCKING | Flag.BUCKET)) == int(Flag.BLOCKING)
    own = tables.calls.where(beside, *_OF_CALLS)
    own = own[own["transfer_ns"] >= 0]
    if own.empty:
        return None
    is_counted = tables.steps["sync"].between(counted.first_sync, counted.last_sync)
    steps = tables.steps[["rank", "step"]][is_counted]
    own = own.merge(steps.drop_duplicates(), on=["rank", "step"])
    if own.empty:
        return None
    own = own.assign(calls=1, forward=_in_forward(tables, own))
    groups = own.groupby(["rank", "op", "site"])
    total: pd.DataFrame = groups[["calls", "nbytes", "wait_ns", "forward"]].sum()
    counts = steps.groupby("rank").size()
    per_step = total.div(counts.reindex(total.index.get_level_values("rank")).to_numpy(), axis=0)
    # a call that a busy host held up is no habit of the line
    transfer = groups["transfer_ns"].median() * per_step["calls"]
    return per_step.assign(transfer_ns=transfer).reset_index()


def _in_forward(tables: Tables, own: pd.DataFrame) -> Ints:
    """Whether forward surrounds each broadcast of the first rank: what goes on right after it."""
    first = int(own["rank"].iloc[0])
    segments = rows_of(tables.segments, first)
    local = segments[~segments["phase"].isin([Phase.WAIT, Phase.TRANSFER])]
    begins = local["begin_ns"].to_numpy(np.int64)
    if not len(begins):
        return np.zeros(len(own), np.int64)
    after = np.searchsorted(begins, own["arrival_ns"].to_numpy(np.int64), "left")
    phase = local["phase"].to_numpy(np.int64)[np.minimum(after, len(begins) - 1)]
    return np.asarray((phase == Phase.FORWARD) & (own["rank"] == first), np.int64)


def _with_gain(extra: ExtraCall, played: Playing, calls: CallsOfStep) -> ExtraCall:
    """What the step gains without these calls; waiting that others take over is not gained."""
    rows = calls.rows
    ops, sites = rows["op"].to_numpy(), rows["site"].to_numpy()
    same = (ops == extra.op) & calls.steps.blocks & (sites == _site_number(extra, calls))
    if not same.any():
        return extra
    gain = played.gain(Fix.NO_EXTRAS, "", calls.steps.without(same))
    # of the calls of these steps; others are made in some steps only
    share = min(1.0, extra.calls / float(same.sum()))
    return replace(extra, saved_ms=share * gain.saved_ms, error_ms=gain.error_ms)


def _site_number(extra: ExtraCall, calls: CallsOfStep) -> int:
    return next((n for n, site in calls.sites.items() if site == extra.site), 0)


def _bucket_use(calls: CallsOfStep) -> BucketUse:
    """As recorded: the replay on the recorded steps gives when all ranks had each bucket."""
    steps = calls.steps
    places = steps.buckets
    first = int(places[0])
    at = np.cumsum(steps.own_ms, axis=2)
    begin = at[:, :, first] - steps.backward_ms
    whole = np.maximum(at[:, :, -1] - begin, 1e-6)
    share = ((at[:, :, places] - begin[:, :, None]) / whole[:, :, None]).max(axis=1)
    return BucketUse(
        tuple(steps.nbytes[places].tolist()),
        tuple(np.clip(np.median(share, axis=0), 0, 1).tolist()),
        float(np.median(whole.max(axis=1))),
        float(np.mean(calls.exposed_ms)),
        float(np.mean(calls.transfer_ms)),
        float(np.mean(calls.last_ms)),
    )


def _search_bytes(tables: Tables, models: tuple[ModelGroup, ...]) -> float:
    """Of the map of used parameters, where it was seen to be reduced."""
    for group in models:
        wanted = _MAP_ITEM * group.info.parameter_count
        op, nbytes, bucket = tables.calls.recorded("op", "nbytes", "bucket")
        if ((nbytes == wanted) & (op == int(Op.ALL_REDUCE)) & (bucket < 0)).any():
            return float(wanted)
    return 0.0


def site_of(site: Site | None) -> str:
    """`train.py:12`, or words."""
    return f"{site.file.rsplit('/', 1)[-1]}:{site.line}" if site is not None else "a library"
