"""How a record ends that nobody closed: who stands in a collective, and who never came."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import MixedCall, MixedCollective, StuckCollective
from ddpdoctor.events import Flag, Op
from ddpdoctor.recordedcalls import is_matched
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run
from ddpdoctor.wording import rank_list

Ints = npt.NDArray[np.int64]


def unfinished(run: Run) -> tuple[str, ...]:
    """A sentence on a job that was killed, hangs or still runs; none where all ranks closed."""
    still_open = [trace for trace in run.ranks if not trace.closed]
    terminated = [t.info.rank for t in still_open if t.last_stacks.at_sigterm is not None]
    hung_up = [t.info.rank for t in still_open if t.last_stacks.at_sighup is not None]
    known = {*terminated, *hung_up}
    unknown = [trace.info.rank for trace in still_open if trace.info.rank not in known]
    sentences = []
    if hung_up:
        sentences.append(f"SIGHUP ended {rank_list(hung_up)}")
        terminated = [rank for rank in terminated if rank not in hung_up]
    if terminated:
        sentences.append(f"SIGTERM ended {rank_list(terminated)}")
    if unknown:
        sentences.append(
            f"the record of {rank_list(unknown)} was not closed: the job was killed, or it still "
            "runs"
        )
    return tuple(sentences)


def stuck_collectives(run: Run, tables: Tables) -> tuple[StuckCollective, ...]:
    """The first of each group that some ranks stand in; those behind it are its consequence."""
    still_open = [trace.info.rank for trace in run.ranks if not trace.closed]
    if not still_open:
        return ()
    rank, flags, group, completion = tables.calls.recorded(
        "rank", "flags", "group", "completion_ns"
    )
    pending = tables.calls.where(
        (completion < 0) & is_matched(flags, group) & np.isin(rank, still_open)
    )
    pending = pending[~pending["complete"]]
    found = []
    for _, of_group in pending.groupby("group"):
        stuck = _stuck(tables, of_group[of_group["seq"] == of_group["seq"].min()])
        if stuck.missing or stuck.failed:
            found.append(stuck)
    return tuple(found)


_SAME_BYTES = frozenset({Op.ALL_REDUCE.label, Op.BROADCAST.label})  # on all ranks


def mixed_collectives(run: Run, tables: Tables) -> tuple[MixedCollective, ...]:
    """Groups in which ranks stand in a number that all have called, and not all alike.

    The number is that of the rank which came least far. Others may be ahead: the root of a
    broadcast waits for nobody.
    """
    caught = [trace.info.rank for trace in run.ranks if not trace.came_through]
    found = []
    for rows in _by_group(tables, caught):
        rank, seq = (column[rows] for column in tables.calls.recorded("rank", "seq"))
        ranks, first = np.unique(rank, return_index=True)
        last = np.maximum.reduceat(seq, first)
        least = int(last.min())
        calls_there = _taken(tables, rows[seq == least]).drop_duplicates("rank")
        still = calls_there[calls_there["rank"].isin(ranks[last == least])]
        if len(calls_there) < len(last) or (still["completion_ns"] >= 0).any():
            continue
        parties = tuple(_parties(run, calls_there))
        if len(parties) > 1:
            found.append(MixedCollective(least, parties))
    return tuple(found)


def _taken(tables: Tables, rows: Ints) -> pd.DataFrame:
    names = ("rank", "op", "nbytes", "site", "completion_ns")
    columns = zip(names, tables.calls.recorded(*names), strict=True)
    return pd.DataFrame({name: column[rows] for name, column in columns})


def _by_group(tables: Tables, ranks: list[int]) -> Iterator[Ints]:
    """The matched calls of these ranks, group by group, as rows in their order."""
    if not ranks:
        return
    rank, flags, group = tables.calls.recorded("rank", "flags", "group")
    chosen = is_matched(flags, group) & np.isin(rank, ranks)
    rows = np.flatnonzero(chosen)
    group = group[rows]
    if len(group) and (group != group[0]).any():
        order = np.argsort(group, kind="stable")
        rows, group = rows[order], group[order]
    yield from np.split(rows, np.flatnonzero(group[1:] != group[:-1]) + 1) if len(rows) else ()


def _parties(run: Run, calls: pd.DataFrame) -> list[MixedCall]:
    sites = {trace.info.rank: trace.sites for trace in run.ranks}
    by_call: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in calls[["rank", "op", "nbytes", "site"]].itertuples(index=False):
        rank, code, size, site = (int(value) for value in row)
        op = Op(code).label
        by_call.setdefault((op, size if op in _SAME_BYTES else 0), []).append((rank, site))
    parties = [
        MixedCall(tuple(rank for rank, _ in own), *call, sites[own[0][0]].get(own[0][1]))
        for call, own in ((call, sorted(own)) for call, own in by_call.items())
    ]
    return sorted(parties, key=lambda party: -len(party.ranks))


def _stuck(tables: Tables, waiting: pd.DataFrame) -> StuckCollective:
    seq = int(waiting["seq"].iloc[0])
    rank, flags, group, number = tables.calls.recorded("rank", "flags", "group", "seq")
    of_group = group == waiting["group"].iloc[0]
    same = of_group & (number == seq) & ((flags & int(Flag.POINT_TO_POINT)) == 0)
    failed = same & ((flags & int(Flag.FAILED)) > 0)
    there = set(_each(rank[same]))
    return StuckCollective(
        Op(int(waiting["op"].iloc[0])).label,
        seq,
        tuple(_each(waiting["rank"].to_numpy())),
        tuple(each for each in _each(rank[of_group]) if each not in there),
        tuple(_each(rank[failed])),
    )


def _each(ranks: Ints) -> list[int]:
    return [int(rank) for rank in np.unique(ranks)]
