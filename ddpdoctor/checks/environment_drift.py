"""DD404 environment-drift: ranks run different versions, variables or code.

What it measures
    Versions of Python, torch and its companions; the variables that steer torch, NCCL, gloo
    and OpenMP; a hash of each file of the training program, on every rank. In a job that hangs at
    its start: the script of each rank, and the variables with which it was started that decide
    which calls torch and NCCL make.

Why it matters
    Another torch or NCCL build makes hangs and mismatched results; another copy of the script
    trains another model on some ranks; other thread or network settings make one host slow.

What to do
    Start all ranks from one image or environment and one copy of the code, and set variables in the
    launcher and not in a shell profile of one host.

When it is wrong
    Variables that differ by design are not compared: rank numbers, the visible devices, what names
    the host or a place to write to, and values that differ only by the rank's own number. Code
    that a rank loads later than the first DDP model is not seen, and in a job that hangs no
    variable that the script sets itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ddpdoctor.checks import NotEnoughData, hang_check, launch_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe_alike
from ddpdoctor.hang.alike import SCRIPT, started_apart
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.launchfacts import LaunchFacts, Process, hosts_of, process_of
from ddpdoctor.wording import SHOWN, rank_list, said_by_rank

if TYPE_CHECKING:
    from ddpdoctor.analysis.model import Analysis

DIFFERS_BY_DESIGN: Final = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
        "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
        "MASTER_ADDR",  # a host may reach itself by another name
        "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",  # interface names belong to the host
    }
)  # fmt: skip
SLURM_DIFFERS: Final = "SLURM_"  # node, task and step identities
PLACES: Final = ("_DIR", "_FILE", "_PATH", "_FOLDER", "_PREFIX")  # where to write, not what to do
_NUMBER: Final = re.compile(r"([0-9]{1,9})")  # longer is no rank, and may be too long for int()
NOT_SET: Final = "(not set)"


@dataclass(frozen=True)
class _Difference:
    """One fact that is not the same on all ranks."""

    kind: str
    name: str
    values: dict[int, str]

    @property
    def usual(self) -> str | None:
        """The value that more than half of the ranks have."""
        value, count = Counter(self.values.values()).most_common(1)[0]
        return value if 2 * count > len(self.values) else None

    @property
    def culprits(self) -> tuple[int, ...]:
        """Ranks that differ from the usual value; all of them where there is none."""
        usual = self.usual
        return tuple(rank for rank, value in self.values.items() if value != usual)

    @property
    def said(self) -> str:
        return said_by_rank(self.values)


@trace_check("DD404", "environment-drift")
def environment_drift(run: Analysis) -> Iterator[Finding]:
    from ddpdoctor.lastlook import judged_by, last_look

    seen = last_look(run.run)
    if seen is not None and started_apart(seen):
        yield from judged_by(run, environment_drift_in_a_hang)
        return
    yield from _drift({trace.info.rank: process_of(trace.info) for trace in run.run.ranks})


@launch_check("DD404", "environment-drift")
def environment_drift_at_launch(launch: LaunchFacts) -> Iterator[Finding]:
    yield from _drift({rank: processes[0] for rank, processes in launch.ranks.items()})


def _drift(ranks: dict[int, Process]) -> Iterator[Finding]:
    if len(ranks) < 2:
        raise NotEnoughData("one rank's facts; two are needed to compare")
    by_culprits: dict[tuple[int, ...], list[_Difference]] = {}
    for difference in _differences(ranks):
        by_culprits.setdefault(difference.culprits, []).append(difference)
    for culprits, differences in by_culprits.items():
        yield _finding(culprits, differences, ranks)


def _differences(ranks: dict[int, Process]) -> Iterator[_Difference]:
    for kind, facts in (
        ("version", {rank: process.versions for rank, process in ranks.items()}),
        ("variable", {rank: _comparable(process.environment) for rank, process in ranks.items()}),
        ("code", {rank: process.code for rank, process in ranks.items()}),
    ):
        for name in sorted({name for values in facts.values() for name in values}):
            if kind == "code" and not all(name in values for values in facts.values()):
                continue  # a module that only some ranks have imported so far is no other code
            values = {rank: own.get(name, NOT_SET) for rank, own in facts.items()}
            if len(set(values.values())) > 1 and not _follows_rank(values, ranks):
                yield _Difference(kind, name, values)


def _follows_rank(values: dict[int, str], ranks: dict[int, Process]) -> bool:
    """Whether the values are one, but for numbers that are each rank's own or its local one.

    Of two ranks a bare 0 and 1 may as well be off and on, so they count as different.
    """
    if len(ranks) == 2 and all(value.isdecimal() for value in values.values()):
        return False
    parts = [_NUMBER.split(values[rank]) for rank in ranks]  # text, number, text, …
    if len({len(own) for own in parts}) > 1:
        return False
    own_numbers = (list(ranks), [process.local_rank for process in ranks.values()])
    for index, column in enumerate(zip(*parts, strict=True)):
        if len(set(column)) > 1 and (
            index % 2 == 0 or [int(number) for number in column] not in own_numbers
        ):
            return False
    return True


def _comparable(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in DIFFERS_BY_DESIGN
        and not name.startswith(SLURM_DIFFERS)
        and not name.endswith(PLACES)
    }


def _finding(
    culprits: tuple[int, ...], differences: list[_Difference], ranks: dict[int, Process]
) -> Finding:
    serious = any(difference.kind != "variable" for difference in differences)
    names = [f"{difference.kind} {difference.name}" for difference in differences]
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
    odd = differences[0].usual is not None
    who = f"{rank_list(culprits)} differ{'s' * (len(culprits) == 1)} from the others"
    return Finding(
        severity=Severity.ERROR if serious else Severity.WARNING,
        confidence=Confidence.CERTAIN,
        message=f"{who if odd else 'the ranks differ'} in {shown}",
        fix=_fix(differences, odd=odd),
        culprits=culprits,
        hosts=hosts_of(ranks[rank] for rank in culprits) if odd else (),
        evidence=tuple(Evidence(f"{d.kind} {d.name}", d.said) for d in differences),
    )


def _fix(differences: list[_Difference], *, odd: bool) -> str:
    kinds = {difference.kind for difference in differences}
    parts = []
    if "version" in kinds:
        parts.append("start every rank from one environment or image, with the same versions")
    if "code" in kinds:
        parts.append("give every rank the same copy of the code")
    if "variable" in kinds:
        first = next(d for d in differences if d.kind == "variable")
        value = f" ({first.name}: {first.usual} on most ranks)" if odd else ""
        parts.append(f"set variables in the launcher, to the same value for all ranks{value}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. Then start the job again."


@hang_check("DD404", "environment-drift")
def environment_drift_in_a_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    """Where the ranks stand at the start: what may differ without harm is not looked at."""
    apart = started_apart(snapshot)
    if not apart:
        return
    names = describe_alike.names(apart)
    scripts = any(each.what == SCRIPT for each in apart)
    yield describe_alike.finding(
        snapshot,
        apart,
        f"the ranks were not started alike: {names} differ{'s' * (len(apart) == 1)}",
        "Start the same script on all ranks."
        if scripts
        else "Set these variables in the launcher, to the same value for all ranks.",
    )
