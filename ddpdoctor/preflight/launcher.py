"""What the launcher told this process: rank, world size, where to meet; and what is impossible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddpdoctor.launchfacts import MOST_RANKS

DEFAULT_PORT: Final = 29500  # torch's own
_MOST_NODES: Final = 4096
_MOST_TEXT: Final = 16 * 1024
_NODES: Final = re.compile(r"[A-Za-z0-9._-]+(?:\[[0-9,-]+\])?")
_NODELIST: Final = re.compile(rf"{_NODES.pattern}(?:,{_NODES.pattern})*")
_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """The place of this process in a job; None where nothing tells it."""

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    address: str | None = None
    port: int | None = None
    agent_store: bool = False  # the launcher's agent listens at the address, not rank 0
    job: str = ""  # tells restarts of one job apart
    nodes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    unit: str = "rank"

    @property
    def meets(self) -> bool:
        """Whether there are others to meet, and a place for it."""
        return (
            self.rank is not None
            and self.world_size is not None
            and self.rank < self.world_size
            and self.world_size > 1
            and self.address is not None
            and self.port is not None
        )

    @property
    def listens(self) -> bool:
        return self.rank == 0 and not self.agent_store


def launch_of(variables: Mapping[str, str]) -> Launch:
    """By the variables of torchrun, or of Slurm where those are not set."""
    if "RANK" in variables or "WORLD_SIZE" in variables:
        return _judged(_by_torchrun(variables), variables)
    if "SLURM_PROCID" in variables and _number(variables, "SLURM_NTASKS") not in (None, 1):
        return _by_slurm(variables)
    port = _number(variables, "MASTER_PORT")
    return Launch(port=port, nodes=expand_nodes(variables.get("SLURM_JOB_NODELIST", "")))


def _by_torchrun(variables: Mapping[str, str]) -> Launch:
    restart = variables.get("TORCHELASTIC_RESTART_COUNT", "")
    return Launch(
        rank=_number(variables, "RANK"),
        world_size=_number(variables, "WORLD_SIZE"),
        local_rank=_number(variables, "LOCAL_RANK"),
        local_world_size=_number(variables, "LOCAL_WORLD_SIZE"),
        node_rank=_number(variables, "GROUP_RANK"),
        address=variables.get("MASTER_ADDR"),
        port=_number(variables, "MASTER_PORT"),
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job=f"{variables.get('TORCHELASTIC_RUN_ID', '')}/{restart}",
        nodes=expand_nodes(variables.get("SLURM_JOB_NODELIST", "")),
    )


def _by_slurm(variables: Mapping[str, str]) -> Launch:
    nodes = expand_nodes(variables.get("SLURM_JOB_NODELIST", ""))
    step = f"{variables.get('SLURM_JOB_ID', '')}.{variables.get('SLURM_STEP_ID', '')}"
    return Launch(
        rank=_number(variables, "SLURM_PROCID"),
        world_size=_number(variables, "SLURM_NTASKS"),
        local_rank=_number(variables, "SLURM_LOCALID"),
        node_rank=_number(variables, "SLURM_NODEID"),
        address=nodes[0] if nodes else None,
        port=DEFAULT_PORT,
        job=f"slurm {step}",
        nodes=nodes,
    )


def _judged(launch: Launch, variables: Mapping[str, str]) -> Launch:
    """With what is wrong in the variables themselves; impossible numbers are then left out."""
    problems = [f"{name} is not set" for name in _TORCHRUN if name not in variables]
    problems += [
        f"{name}={variables[name][:40]!r} is no number that it can be"
        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
        if name in variables and _number(variables, name) is None
    ]
    if launch.world_size == 0:
        problems.append("WORLD_SIZE is 0")
        launch = replace(launch, world_size=None)
    rank, world_size = launch.rank, launch.world_size
    if rank is not None and world_size is not None and rank >= world_size:
        problems.append(f"RANK={rank} is not below WORLD_SIZE={world_size}")
    problems += against_slurm(launch.world_size, variables, may_spawn=False)
    return replace(launch, problems=tuple(problems))


def against_slurm(
    world_size: int | None, variables: Mapping[str, str], *, may_spawn: bool
) -> list[str]:
    """What is wrong where each task of Slurm is a rank, or spawns several of them."""
    tasks = _number(variables, "SLURM_NTASKS")
    if "TORCHELASTIC_RUN_ID" in variables or "SLURM_STEP_ID" not in variables:
        return []  # a task that starts torchrun is a node; without a step nothing was started
    if tasks is None or world_size is None or world_size == tasks:
        return []
    if world_size > tasks and may_spawn:
        return []
    return [f"WORLD_SIZE={world_size}, but Slurm started {tasks} tasks"]


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 7:
        return None
    value = int(text)
    least_wrong = 65536 if name == "MASTER_PORT" else MOST_RANKS
    return value if value < least_wrong else None


def expand_nodes(nodelist: str) -> tuple[str, ...]:
    """Slurm's `node[01-03,7],login` as host names; none where it is written otherwise."""
    found: list[str] = []
    if not _NODELIST.fullmatch(nodelist[:_MOST_TEXT]):
        return ()
    for part in _NODES.findall(nodelist[:_MOST_TEXT]):
        prefix, bracket, ranges = part.rstrip("]").partition("[")
        if not bracket:
            found.append(prefix)
            continue
        for entry in ranges.split(","):
            first, _, last = entry.partition("-")
            last = last or first
            if not (first.isdecimal() and last.isdecimal()) or len(last) > 7:
                return ()
            numbers = range(int(first), int(last) + 1)[:_MOST_NODES]
            found += [f"{prefix}{number:0{len(first)}d}" for number in numbers]
    return tuple(found[:_MOST_NODES])
