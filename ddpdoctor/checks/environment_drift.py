"""DD404 environment-drift: ranks run different versions, variables or code.

What it measures
    Versions of Python, torch and its companions; the variables that steer torch, NCCL, gloo
    and OpenMP; a hash of each file of the training program, on every rank.

Why it matters
    Another torch or NCCL build makes hangs and mismatched results; another copy of the script
    trains another model on some ranks; other thread or network settings make one host slow.

What to do
    Start all ranks from one image or environment and one copy of the code, and set variables in the
    launcher and not in a shell profile of one host.

When it is wrong
    Variables that differ by design (rank numbers, the visible devices, anything that names the
    host) are not compared. Code that a rank loads later than the first DDP model is not seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.wording import rank_list
from ddpdoctor.events import RankInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity

DIFFERS_BY_DESIGN: Final = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
        "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
        "MASTER_ADDR",  # a host may reach itself by another name
        "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",  # interface names belong to the host
    }
)  # fmt: skip
SLURM_DIFFERS: Final = "SLURM_"  # node, task and step identities
NOT_SET: Final = "(not set)"


@dataclass(frozen=True)
class _Difference:
    """One fact that is not the same on all ranks; the culprits hold the rarer values."""

    kind: str
    name: str
    values: dict[int, str]

    @property
    def usual(self) -> str:
        return Counter(self.values.values()).most_common(1)[0][0]

    @property
    def culprits(self) -> tuple[int, ...]:
        return tuple(rank for rank, value in self.values.items() if value != self.usual)

    @property
    def majority(self) -> bool:
        return 2 * len(self.culprits) < len(self.values)


@trace_check("DD404", "environment-drift")
def environment_drift(run: Analysis) -> Iterator[Finding]:
    infos = [trace.info for trace in run.run.ranks]
    if len(infos) < 2:
        raise NotEnoughData("one rank's facts; two are needed to compare")
    for difference in _differences(infos):
        yield _finding(difference)


def _differences(infos: list[RankInfo]) -> Iterator[_Difference]:
    for kind, facts in (
        ("version of", {info.rank: info.versions for info in infos}),
        ("variable", {info.rank: _comparable(info.environment) for info in infos}),
        ("code in", {info.rank: info.code for info in infos}),
    ):
        for name in sorted({name for values in facts.values() for name in values}):
            if kind == "code in" and not all(name in values for values in facts.values()):
                continue  # a module that only some ranks have imported so far is no other code
            values = {rank: own.get(name, NOT_SET) for rank, own in facts.items()}
            if len(set(values.values())) > 1:
                yield _Difference(kind, name, values)


def _comparable(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in DIFFERS_BY_DESIGN and not name.startswith(SLURM_DIFFERS)
    }


def _finding(difference: _Difference) -> Finding:
    culprits = difference.culprits if difference.majority else tuple(difference.values)
    groups: dict[str, list[int]] = {}
    for rank, value in difference.values.items():
        groups.setdefault(value, []).append(rank)
    said = "; ".join(f"{value} on {rank_list(ranks)}" for value, ranks in groups.items())
    serious = difference.kind != "variable"
    return Finding(
        severity=Severity.ERROR if serious else Severity.WARNING,
        confidence=Confidence.CERTAIN,
        message=f"{difference.kind} {difference.name} differs between ranks: {said}",
        fix=_fix(difference),
        culprits=culprits,
        evidence=tuple(
            Evidence(f"{difference.kind} {difference.name} on {rank_list(ranks)}", value)
            for value, ranks in groups.items()
        ),
    )


def _fix(difference: _Difference) -> str:
    who = rank_list(difference.culprits)
    if difference.kind == "variable":
        return (
            f"Set {difference.name} in the launcher for all ranks alike; {who} "
            f"should have {difference.usual!r} as the others, unless the difference is meant."
            if difference.majority
            else f"Set {difference.name} in the launcher, to one value for all ranks."
        )
    if difference.kind == "code in":
        return f"Start every rank from one copy of {difference.name}: update it on all hosts, then restart."
    return (
        f"Install one version of {difference.name} in the environments of all ranks, then restart."
    )
