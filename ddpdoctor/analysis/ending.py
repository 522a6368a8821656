"""How a record ends that nobody closed: who stands in a collective, and who never came."""

from __future__ import annotations

import pandas as pd

from ddpdoctor.events import Kind, Op, Phase
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
    for _, of_group in pending.groupby("group"):  # those behind the first are its consequence
        first = of_group[of_group["seq"] == of_group["seq"].min()]
        sentences += _who_never_came(run, tables, first)
    return sentences


def _who_never_came(run: Run, tables: Tables, waiting: pd.DataFrame) -> list[str]:
    """One collective in which some ranks stand and others of the group did not arrive."""
    op, seq = Op(int(waiting["op"].iloc[0])), int(waiting["seq"].iloc[0])
    there = sorted(int(rank) for rank in waiting["rank"].unique())
    same_group = tables.collectives["group"] == waiting["group"].iloc[0]
    of_group = tables.collectives[same_group]["rank"].unique()
    missing = sorted(int(rank) for rank in of_group if rank not in there)
    if not missing or op in (Op.SEND, Op.RECV):
        return []
    last = "; ".join(f"rank {rank} was last in {_last_phase(run, rank)}" for rank in missing[:3])
    stand = "stands" if len(there) == 1 else "stand"
    return [
        f"{rank_list(there)} {stand} in {op.label} (number {seq} of its group), where "
        f"{rank_list(missing)} did not arrive; {last}"
    ]


def _last_phase(run: Run, rank: int) -> str:
    """Phase of the span that is open at the end of the record, else between the phases."""
    trace = next(trace for trace in run.ranks if trace.info.rank == rank)
    spans = trace.detail[(trace.detail["kind"] == Kind.SPAN) & (trace.detail["end_ns"] == 0)]
    return Phase(int(spans[-1]["code"])).label if len(spans) else "no phase, between steps"
