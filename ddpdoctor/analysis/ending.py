"""How a record ends that nobody closed: who stands in a collective, and who never came."""

from __future__ import annotations

import pandas as pd

from ddpdoctor.events import Flag, Kind, Op, Phase
from ddpdoctor.matching import is_matched
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run
from ddpdoctor.wording import rank_list


def unfinished(run: Run, tables: Tables) -> list[str]:
    """Sentences on a job that was killed, hangs or still runs; none where all ranks closed."""
    still_open = [trace.info.rank for trace in run.ranks if not trace.closed]
    if not still_open:
        return []
    sentences = [
        f"the record of {rank_list(still_open)} was not closed: the job was killed, or it "
        f"still runs"
    ]
    pending = tables.collectives[
        (tables.collectives["completion_ns"] < 0) & ~tables.collectives["complete"]
    ]
    pending = pending[pending["rank"].isin(still_open)]
    pending = pending[is_matched(pending["flags"], pending["group"])]
    for _, of_group in pending.groupby("group"):  # those behind the first are its consequence
        first = of_group[of_group["seq"] == of_group["seq"].min()]
        sentences += _who_never_came(run, tables, first)
    return sentences


def _who_never_came(run: Run, tables: Tables, waiting: pd.DataFrame) -> list[str]:
    """One collective in which some ranks stand, and which others failed in or did not reach."""
    op, seq = Op(int(waiting["op"].iloc[0])), int(waiting["seq"].iloc[0])
    there = _ranks(waiting)
    of_group = tables.collectives[tables.collectives["group"] == waiting["group"].iloc[0]]
    numbered = (of_group["flags"] & int(Flag.POINT_TO_POINT)) == 0
    same = of_group[numbered & (of_group["seq"] == seq)]
    failed = _ranks(same[(same["flags"] & int(Flag.FAILED)) > 0])
    missing = [rank for rank in _ranks(of_group) if rank not in _ranks(same)]
    if failed:
        why = f"which failed on {rank_list(failed)}"
    elif missing:
        last = [f"rank {rank} was last in {_last_phase(run, rank)}" for rank in missing[:3]]
        why = f"where {rank_list(missing)} did not arrive; {'; '.join(last)}"
    else:
        return []
    stand = "stands" if len(there) == 1 else "stand"
    return [f"{rank_list(there)} {stand} in {op.label} (number {seq} of its group), {why}"]


def _ranks(calls: pd.DataFrame) -> list[int]:
    return sorted(int(rank) for rank in calls["rank"].unique())


def _last_phase(run: Run, rank: int) -> str:
    """Phase of the span that is open at the end of the record, else between the phases."""
    trace = next(trace for trace in run.ranks if trace.info.rank == rank)
    spans = trace.detail[(trace.detail["kind"] == Kind.SPAN) & (trace.detail["end_ns"] == 0)]
    return Phase(int(spans[-1]["code"])).label if len(spans) else "no phase, between steps"
