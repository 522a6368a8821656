"""DD303 sampler-mismatch: the ranks' samplers do not split the dataset between them.

What it measures
    What the sampler of each rank says: `num_replicas`, `rank`, `seed`, `shuffle` and the epoch
    that `set_epoch` told it. Ranks that reduce their gradients together need as many replicas
    as there are such ranks (or ranks of the job), a rank each of its own, and the rest equal.

Why it matters
    With wrong settings ranks train on the same samples, leave others out, or both. Nothing fails
    and the loss goes down.

What to do
    Leave `num_replicas` and `rank` of the DistributedSampler to their defaults, give every rank the
    same `seed` and `shuffle`, and call `set_epoch(epoch)` with the same number on all ranks.

When it is wrong
    Ranks that share a model's parts may share samples, so only ranks that reduce together are
    compared. Nodes that hold data of their own may split it among their own ranks: where equal
    indices were seen to be different samples, wrong replicas and ranks are no finding. Samplers
    of one's own are judged by attributes of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import overlaps
from ddpdoctor.analysis.sharding import (
    Mismatch,
    SharedLoader,
    all_steps,
    batches_evidence,
    mismatches,
    shared_loaders,
)
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import SHOWN, rank_list

TORCHS_OWN = "DistributedSampler"
FIXES = {
    "num_replicas": "Make it with num_replicas=dist.get_world_size(), which is the default.",
    "rank": "Make it with rank=dist.get_rank(), which is the default; LOCAL_RANK repeats on nodes.",
    "shuffle": "Give every rank the same `shuffle`.",
    "seed": (
        "Give every rank the same `seed`: all of them shuffle alike, and each then takes its part "
        "of that order."
    ),
    "epoch": "Call sampler.set_epoch(epoch) on every rank, with the same number.",
}


@trace_check("DD303", "sampler-mismatch")
def sampler_mismatch(run: Analysis) -> Iterator[Finding]:
    loaders = shared_loaders(run)
    if not any(i.sampler_replicas is not None for one in loaders for i in one.infos.values()):
        raise NotEnoughData("no loader of two ranks has a sampler that knows its rank")
    for loader, mismatch in mismatches(run):
        yield _finding(loader, mismatch, run)


def _finding(loader: SharedLoader, mismatch: Mismatch, run: Analysis) -> Finding:
    known = any(info.sampler == TORCHS_OWN for info in loader.infos.values())
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if known else Confidence.LIKELY,
        message=_message(loader, mismatch),
        fix=FIXES[mismatch.setting],
        culprits=mismatch.culprits,
        steps=all_steps(run),
        evidence=tuple(_evidence(loader, mismatch, run)),
        where=loader.where(mismatch.culprits),
    )


def _message(loader: SharedLoader, mismatch: Mismatch) -> str:
    culprits = rank_list(mismatch.culprits)
    of = {mismatch.values[rank] for rank in mismatch.culprits}
    value = f" {next(iter(of))}" if len(of) == 1 else ""
    sampler = loader.infos[mismatch.culprits[0]].sampler
    if mismatch.setting == "num_replicas":
        if of == {None}:
            return f"{culprits} reads the whole dataset ({sampler}) and other ranks a part of it"
        return (
            f"the {sampler} of {culprits} splits the dataset for{value or ' other numbers of'} "
            f"replicas, and {len(loader.members)} ranks train together"
        )
    if mismatch.setting == "rank":
        return f"the {sampler} of {culprits} draws the part of another rank (rank={value.strip()})"
    if len(mismatch.culprits) == len(loader.ranks):
        return (
            f"the {sampler}s of {culprits} do not have the same {mismatch.setting}, so the ranks' "
            "parts overlap"
        )
    what = {"epoch": "was told another epoch", "seed": "has another seed"}
    differs = what.get(mismatch.setting, "shuffles otherwise")
    return f"the {sampler} of {culprits} {differs}{value}, so the ranks' parts overlap"


def _evidence(loader: SharedLoader, mismatch: Mismatch, run: Analysis) -> Iterator[Evidence]:
    for rank in sorted(mismatch.values)[:SHOWN]:
        yield Evidence(f"rank {rank}: {mismatch.setting}", _plain(mismatch.values[rank]))
    if loader.info.dataset_length is not None:
        yield Evidence("samples in the dataset", loader.info.dataset_length)
    yield from batches_evidence(loader)
    shares = [
        overlap.share
        for overlap in overlaps(loader.traces, run.world_size)
        if overlap.loader == loader.number
    ]
    if shares:
        yield Evidence("samples that two ranks share, at most", 100 * min(1.0, max(shares)), "%")


def _plain(value: object) -> float | str | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
