"""What the system kept of ranks that are gone: torchrun's error files, and kills for memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from ddpdoctor.cgroups import MemoryKills, hierarchy_of
from ddpdoctor.hang.jobs import JobMembers
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.snapshot import DeadRank
from ddpdoctor.regular import read_up_to

_ERROR_FILE: Final = "error.json"
_EVENTS: Final = ("memory.events", "memory.oom_control")  # of control groups of version 2 and 1
_MAX_BYTES: Final = 64 * 1024
_MAX_ERROR_FILE: Final = 1024 * 1024


def with_last_words(job: JobMembers, processes: Processes) -> tuple[DeadRank, ...]:
    """The dead ranks of a job, with what torchrun's error files say of them."""
    files = _error_files(job, processes)
    return tuple(_heard(dead, files) for dead in job.dead)


def _error_files(job: JobMembers, processes: Processes) -> dict[int, Path]:
    """By rank, where torchrun told a rank to write its error: a folder a local rank.

    Living ranks tell the place; those of the dead lie beside theirs.
    """
    for member in job.members:
        identity = processes.identity(member.pid) or {}
        path = Path(identity.get("TORCHELASTIC_ERROR_FILE") or ".")
        local, size = identity.get("LOCAL_RANK", ""), identity.get("LOCAL_WORLD_SIZE", "")
        told = member.rank is not None and local.isdecimal() and size.isdecimal()
        if told and path.is_absolute() and path.name == _ERROR_FILE and path.parent.name == local:
            first = (member.rank or 0) - int(local)
            folder = path.parent.parent
            named = [dead.rank for dead in job.dead if dead.rank is not None]
            return {
                rank: folder / str(rank - first) / _ERROR_FILE
                for rank in named
                if 0 <= rank - first < int(size)
            }
    return {}


def _heard(dead: DeadRank, files: dict[int, Path]) -> DeadRank:
    from ddpdoctor.hang.logfiles import error_in

    path = files.get(dead.rank) if dead.rank is not None else None
    if path is None:
        return dead
    try:
        said = error_in(read_up_to(path, _MAX_ERROR_FILE), dead.rank)
    except OSError:
        return dead
    if said is None:
        return dead
    words = f"{said.error}: {said.message}".removeprefix(": ")
    return replace(dead, said=words, site=said.site)


def memory_kills(pids: Iterable[int], processes: Processes) -> tuple[MemoryKills, ...]:
    """The control groups of these processes in which the kernel has killed for memory.

    A group without a limit of its own counts nothing, so those around it are asked, too. A
    kill may be an old one: it is evidence beside a process that is gone, and nothing alone.
    """
    found = dict.fromkeys(kills for pid in pids for kills in _of(processes.folder(pid)))
    return tuple(found)


def _of(proc: Path) -> Iterator[MemoryKills]:
    try:
        hierarchy = hierarchy_of("memory", proc)
    except (OSError, ValueError):
        return
    for group in hierarchy.up() if hierarchy else ():
        for name in _EVENTS:
            kills = _fields(_seen_by(proc, group) / name).get("oom_kill", 0)
            if kills:
                yield MemoryKills(str(group), kills)
                return


def _seen_by(proc: Path, group: Path) -> Path:
    """The folder as the process sees it, which may live in a container."""
    inside = proc / "root" / group.relative_to(group.anchor)
    try:
        return inside if inside.is_dir() else group
    except OSError:
        return group


def _fields(path: Path) -> dict[str, int]:
    try:
        text = read_up_to(path, _MAX_BYTES).decode(errors="replace")
    except OSError:
        return {}
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
