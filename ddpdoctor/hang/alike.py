"""What all ranks of a job must have alike to make the same calls, and what of it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from ddpdoctor.credentials import masked_text
from ddpdoctor.hang.position import loop_of
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.situation import situation
from ddpdoctor.hang.snapshot import HangSnapshot, RankProcess

STEERING: Final = frozenset(  # variables that must be the same for calls of ranks to fit together
    {
        "TORCH_DISTRIBUTED_DEBUG",  # DETAIL: each group makes another one, and checks each call
        "TORCH_DIST_INIT_BARRIER",  # init_process_group ends with a barrier
        "GLOO_DEVICE_TRANSPORT",
        # which algorithms and paths NCCL chooses; each rank does so by itself
        "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_COLLNET_ENABLE", "NCCL_CROSS_NIC", "NCCL_IB_DISABLE",
        "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_NTHREADS", "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE", "NCCL_PROTO", "NCCL_SHM_DISABLE",
    }
)  # fmt: skip
SCRIPT: Final = "the script"
_OF_CALLS: Final = frozenset(  # arguments of DDP by which it makes other collectives
    {"broadcast_buffers", "find_unused_parameters", "init_sync", "static_graph"}
)
_NOT_SET: Final = "(not set)"
_SHOWN: Final = 200  # characters of a value


@dataclass(frozen=True)
class Differing:
    """One thing that ranks do not have alike, by rank."""

    what: str
    values: dict[int, str]

    @property
    def culprits(self) -> tuple[int, ...]:
        """Ranks that differ from what most have; none where there is no such majority."""
        usual, count = Counter(self.values.values()).most_common(1)[0]
        if 2 * count <= len(self.values):
            return ()
        return tuple(rank for rank, value in self.values.items() if value != usual)


def started_with(pid: int, processes: Processes) -> tuple[tuple[str, str], ...]:
    """The script of a process, and its steering variables; () where they may not be read."""
    variables = processes.variables(pid, STEERING)
    if variables is None:
        return ()
    shown = {name: masked_text(value[:_SHOWN]) for name, value in variables.items()}
    return (*sorted(shown.items()), (SCRIPT, _script(processes.command(pid))))


def started_as(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The same by what a rank has recorded of itself; () where it has no command line."""
    if not command:
        return ()
    told = {name: value for name, value in environment.items() if name in STEERING}
    return (*sorted(told.items()), (SCRIPT, _script(command)))


def _script(command: Sequence[str]) -> str:
    """The name of its file, or `-m module`; "" where Python was given none."""
    for word, following in pairwise([*command, ""]):
        if word == "-m":
            return f"-m {following[:_SHOWN]}"
        if word.endswith(".py"):
            return PurePath(word).name[:_SHOWN]
    return ""


def started_apart(snapshot: HangSnapshot) -> tuple[Differing, ...]:
    """Variables and scripts, where the ranks stand still before any loop: at their start."""
    scene = situation(snapshot)
    if not scene.stands_still or any(loop_of(seen.process) for seen in scene.all):
        return ()
    return _differing(snapshot, lambda rank: rank.started, lambda _: True)


def wrapped_apart(snapshot: HangSnapshot) -> tuple[Differing, ...]:
    """Arguments of DDP by which ranks make other calls, as recorded ranks tell them."""
    if not situation(snapshot).stands_still:
        return ()
    return _differing(snapshot, lambda rank: rank.settings, _OF_CALLS.__contains__)


def explained(snapshot: HangSnapshot) -> bool:
    """Whether DD404 or DD405 says why the ranks do not make the same calls."""
    return bool(started_apart(snapshot) or wrapped_apart(snapshot))


def _differing(
    snapshot: HangSnapshot,
    told: Callable[[RankProcess], tuple[tuple[str, str], ...]],
    counts: Callable[[str], bool],
) -> tuple[Differing, ...]:
    ranks = {rank.rank: dict(told(rank)) for rank in snapshot.ranks if rank.rank is not None}
    if len(ranks) < 2 or not all(ranks.values()):
        return ()
    names = sorted({name for own in ranks.values() for name in own if counts(name)})
    found = []
    for name in names:
        values = {rank: own.get(name, _NOT_SET) for rank, own in ranks.items()}
        if len(set(values.values())) > 1:
            found.append(Differing(name, values))
    return tuple(found)
