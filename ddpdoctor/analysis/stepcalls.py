"""Recorded steps as the replay takes them: each rank's own work between the calls of a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.numbered import CallsOfRanks, Numbered, key_of
from ddpdoctor.analysis.replay import Steps
from ddpdoctor.analysis.spent import ByRank, Moments, rows_of, spent_before
from ddpdoctor.events import Flag, Phase, Site
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_STEPS: Final = 64  # spread over the run; more say nothing new of a mean
_MOST_LOOKED_AT: Final = 400
LEAST_STEPS: Final = 5  # alike in their calls
# Blocked time that no call of all ranks explains, as a share of the step: with more, the step
# waits for something else in its middle, such as a second model's reductions.
UNEXPLAINED: Final = 0.02
_MOST_CELLS: Final = 4_000_000  # steps x ranks x calls
_NS_PER_MS: Final = 1e6
_NOT_BACKWARD: Final = np.isin(
    np.arange(len(Phase)), [Phase.INPUT, Phase.FORWARD, Phase.OPTIMIZER, Phase.BETWEEN]
)  # by phase


@dataclass(frozen=True)
class NoReplay:
    """Why the steps cannot be played again."""

    reason: str


@dataclass(frozen=True)
class CallsOfStep:
    """The steps that can be replayed, and what each of their calls is, by its place."""

    steps: Steps
    rows: pd.DataFrame  # of the first rank in the first of these steps: op, site, nbytes, flags
    optimizer_ms: float  # mean, of the slowest rank
    exposed_ms: npt.NDArray[np.float64]  # of each step: buckets under way after all compute
    transfer_ms: npt.NDArray[np.float64]  # in which at least one bucket was under way
    last_ms: npt.NDArray[np.float64]  # of that, the last bucket alone
    sites: dict[int, Site] = field(default_factory=dict)


@dataclass(frozen=True)
class _Chosen:
    """Calls of each chosen step by (group, seq), and the last bucket of the step before."""

    rows: pd.DataFrame
    group: Ints  # S, K
    seq: Ints
    before: Ints  # S, 2


def calls_of_steps(
    tables: Tables, counted: StepRange, world_size: int, sites: dict[int, Site] | None = None
) -> CallsOfStep | NoReplay:
    """Steps of the counted range whose calls are alike, all ranks seen; `sites` of the first."""
    ranks = [int(rank) for rank in tables.steps["rank"].unique()]
    if len(ranks) < world_size or world_size < 2:
        return NoReplay("ranks are missing")
    chosen = _choose(tables, counted, ranks)
    if isinstance(chosen, NoReplay):
        return chosen
    segments = ByRank(tables.segments, "begin_ns", "end_ns", "phase")
    silent = set(ranks).difference(tables.calls.ranks)
    if silent or not all(len(segments.of(rank)[0]) for rank in ranks):
        return NoReplay("a rank recorded no calls")
    calls = CallsOfRanks(tables, "arrival_ns", "completion_ns")
    parts = [_part_of(*calls.of(rank), segments.of(rank), chosen) for rank in ranks]
    joined = _joined(parts, chosen, _optimizer_ms(tables, counted))
    return joined if isinstance(joined, NoReplay) else replace(joined, sites=sites or {})


def _choose(tables: Tables, counted: StepRange, ranks: list[int]) -> _Chosen | NoReplay:
    calls = tables.calls.of_rank(ranks[0])
    flags = calls["flags"].to_numpy()
    untimed = set(calls["step"].to_numpy()[(flags & int(Flag.UNTIMED)) > 0].tolist())
    wanted = (flags & int(Flag.BUCKET | Flag.BLOCKING)) > 0
    calls = calls[wanted & calls["complete"].to_numpy() & (calls["completion_ns"].to_numpy() >= 0)]
    calls = calls.sort_values("arrival_ns", kind="stable")
    windows = _windows(calls)
    sync = _sync_by_step(tables, ranks[0])
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    kinds = np.stack([calls[name].to_numpy() for name in ("group", "op", "nbytes", "flags")], 1)
    step_of = calls["step"].to_numpy()
    for place in _spread(len(windows), _MOST_LOOKED_AT)[1:]:
        begin, end = windows[place]
        step = int(step_of[end - 1])
        if not counted.first_sync <= sync.get(step, -1) <= counted.last_sync or step in untimed:
            continue
        if sync[step] != sync.get(int(step_of[windows[place - 1][1] - 1]), -2) + 1:
            continue  # the step before was not kept
        alike.setdefault(tuple(map(tuple, kinds[begin:end].tolist())), []).append(place)
    if not alike:
        return NoReplay("no two steps that follow each other were recorded with their buckets")
    places = max(alike.values(), key=len)
    if len(places) < LEAST_STEPS:
        return NoReplay(f"only {len(places)} steps make the same calls")
    count = windows[places[0]][1] - windows[places[0]][0]
    most = max(LEAST_STEPS, min(MOST_STEPS, _MOST_CELLS // (count * len(ranks) + 1)))
    places = [places[i] for i in _spread(len(places), most)]
    index = np.array([range(*windows[place]) for place in places])
    group, seq = calls["group"].to_numpy(np.int64), calls["seq"].to_numpy(np.int64)
    last = np.array([windows[place - 1][1] - 1 for place in places])
    before = np.stack([group[last], seq[last]], axis=1)
    return _Chosen(calls.iloc[index[0]], group[index], seq[index], before)


def _spread(count: int, most: int) -> list[int]:
    """At most so many of `range(count)`, evenly."""
    places = np.unique(np.linspace(0, max(0, count - 1), most).astype(int))[:count]
    return [int(place) for place in places]


def _windows(calls: pd.DataFrame) -> list[tuple[int, int]]:
    """From behind the last bucket of a step to that of the next, as positions."""
    bucket = (calls["flags"].to_numpy() & int(Flag.BUCKET)) > 0
    step = calls["step"].to_numpy()
    places = np.flatnonzero(bucket & (step >= 0))
    if not len(places):
        return []
    last = places[np.append(step[places][1:] != step[places][:-1], True)]
    begins = np.concatenate([[0], last[:-1] + 1])
    return list(zip(begins.tolist(), (last + 1).tolist(), strict=True))


def _sync_by_step(tables: Tables, rank: int) -> dict[int, int]:
    own = rows_of(tables.steps, rank)
    return dict(zip(own["step"].tolist(), own["sync"].tolist(), strict=True))


def _optimizer_ms(tables: Tables, counted: StepRange) -> float:
    is_counted = tables.steps["sync"].between(counted.first_sync, counted.last_sync)
    steps = tables.steps[["rank", "optimizer_ns"]][is_counted]
    return float(steps.groupby("rank")["optimizer_ns"].mean().max()) / _NS_PER_MS


@dataclass(frozen=True)
class _Part:
    """One rank: arrivals and completions (S, K), ends of this and the last backward (S); ns."""

    arrival: Ints
    completion: Ints
    begin: Ints
    end: Ints
    blocked_at_end: Ints
    blocked: Ints  # in all of the step
    backward: Ints
    is_whole: Bools


def _part_of(numbered: Numbered, calls: list[Ints], segments: list[Ints], chosen: _Chosen) -> _Part:
    arrivals, completions = calls
    shape = chosen.group.shape
    at, found = numbered.find(key_of(chosen.group, chosen.seq).ravel())
    before, had_before = numbered.find(key_of(chosen.before[:, 0], chosen.before[:, 1]))
    arrival, completion = arrivals[at].reshape(shape), completions[at].reshape(shape)
    begins, ends, phase = segments
    leaves = begins[_NOT_BACKWARD[phase]]
    starts = np.concatenate([[0], begins[phase == int(Phase.BACKWARD)]])
    end, is_last = _first_after(leaves, arrival[:, -1])
    begin, had_begin = _first_after(leaves, arrivals[before])
    blocking = (phase == int(Phase.WAIT)) | (phase == int(Phase.TRANSFER))
    spent = spent_before(begins, ends, blocking)

    def blocked_until(times: Ints) -> Ints:
        return Moments.of(begins, ends, times).spent(spent, blocking)

    first = arrival[:, chosen_buckets(chosen.rows)[0]]
    backward = first - starts[np.searchsorted(starts, first, "right") - 1]
    known = found.reshape(shape).all(axis=1) & had_before & (completion >= 0).all(axis=1)
    blocked = blocked_until(end)
    return _Part(
        arrival, completion, begin, end, blocked - blocked_until(arrival[:, -1]),
        blocked - blocked_until(begin), backward, known & is_last & had_begin,
    )  # fmt: skip


def chosen_buckets(rows: pd.DataFrame) -> Ints:
    """Places of the buckets among the calls of a step."""
    return np.flatnonzero((rows["flags"].to_numpy() & int(Flag.BUCKET)) > 0)


def _first_after(times: Ints, moments: Ints) -> tuple[Ints, Bools]:
    index = np.searchsorted(times, moments, "left")
    found = index < len(times)
    return times[np.minimum(index, len(times) - 1)] if len(times) else moments, found


def _joined(parts: list[_Part], chosen: _Chosen, optimizer_ms: float) -> CallsOfStep | NoReplay:
    whole = np.all([part.is_whole for part in parts], axis=0)
    if whole.sum() < LEAST_STEPS:
        return NoReplay("too few steps were recorded with all their calls on all ranks")

    origin = np.max([part.begin[whole] for part in parts], axis=0)

    def stack(name: str) -> npt.NDArray[np.float64]:
        return np.stack([getattr(part, name)[whole] for part in parts], axis=1).astype(np.float64)

    def times(name: str) -> npt.NDArray[np.float64]:
        since = [(getattr(part, name)[whole].T - origin).T for part in parts]
        return np.stack(since, axis=1).astype(np.float64)

    blocks = ~np.isin(np.arange(len(chosen.rows)), chosen_buckets(chosen.rows))
    arrival, completion = times("arrival"), times("completion")
    begin, end = times("begin"), times("end")
    stood = np.where(blocks, np.maximum(completion - arrival, 0), 0)
    left = np.where(blocks, np.maximum(completion, arrival), arrival)
    own = np.diff(
        np.concatenate([begin[:, :, None], arrival], axis=2), axis=2
    )  # from arrival to arrival
    own[:, :, 1:] -= stood[:, :, :-1]
    last = end - stack("blocked_at_end") - left[:, :, -1]
    own = np.concatenate([own, last[:, :, None]], axis=2)
    unexplained = stack("blocked") - stack("blocked_at_end") - stood.sum(axis=2)
    recorded = end.max(axis=1)
    if np.median(unexplained.max(axis=1) / recorded) > UNEXPLAINED:
        return NoReplay("the step waits in its middle for calls that are not its buckets")
    done = completion.max(axis=1)
    computed = (end - stack("blocked_at_end")).max(axis=1)
    reached = np.maximum(computed, np.where(blocks, 0, done).max(axis=1))
    steps = Steps(
        begin / _NS_PER_MS,
        np.maximum(own, 0) / _NS_PER_MS,
        chosen.rows["nbytes"].to_numpy(np.float64),
        blocks,
        np.where(blocks, np.maximum(done - arrival.max(axis=1), 0), 0) / _NS_PER_MS,
        np.where(blocks, done[:, None, :] - completion, 0) / _NS_PER_MS,
        np.maximum(end.max(axis=1) - reached, 0) / _NS_PER_MS,
        recorded / _NS_PER_MS,
        np.arange(len(chosen.rows)),
        stack("backward") / _NS_PER_MS,
    )
    covered, last = _covered(arrival.max(axis=1)[:, ~blocks], done[:, ~blocks])
    exposed = np.maximum(done[:, ~blocks].max(axis=1, initial=0) - computed, 0)
    return CallsOfStep(
        steps, chosen.rows, optimizer_ms, exposed / _NS_PER_MS, covered / _NS_PER_MS,
        last / _NS_PER_MS,
    )  # fmt: skip


def _covered(
    ready: npt.NDArray[np.float64], done: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Per step the time in which a bucket is under way, and in which only the last one is."""
    if not ready.shape[1]:
        return np.zeros(len(ready)), np.zeros(len(ready))
    reach = np.maximum.accumulate(done, axis=1)
    before = np.concatenate([np.zeros((len(ready), 1)), reach[:, :-1]], axis=1)
    added = np.maximum(reach - np.maximum(ready, before), 0)
    return added.sum(axis=1), added[:, -1]
