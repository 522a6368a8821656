"""Dumps of torch's flight recorder in files: which files are dumps, and of which rank.

Files have whatever names the job gave them. An empty or broken file is evidence, too: its rank did
not come to write it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.events import MOST_RANKS
from ddpdoctor.hang.calls import Dumps, LostDump, RankCalls
from ddpdoctor.hang.flight_recorder import (
    BadDump,
    NotADump,
    OneDump,
    is_pickle,
    may_be_dump,
    parse_dump,
)
from ddpdoctor.regular import read_up_to
from ddpdoctor.wording import rank_list

MAX_BYTES: Final = 32 * 1024 * 1024  # of a file; 2,000 calls take 0.3 MB, as JSON 0.8
MAX_FILES: Final = 20_000
MAX_WORKERS: Final = 16
WORTH_WORKERS: Final = 16 * 1024 * 1024  # bytes in all: five seconds for one process
MAX_LOST: Final = 4_096  # ranks without a dump that are looked at one by one
_HEAD: Final = 64  # bytes that tell what a file cannot be
_NO_DUMP: Final = "it is no dump of torch's flight recorder"
_NAMED: Final = re.compile(r"rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST: Final = re.compile(r"(?<!\d)(\d{1,7})(\.[A-Za-z]+)?$")


@dataclass(frozen=True)
class _File:
    """A file that is a dump, or should be one."""

    path: Path
    dump: OneDump | None
    problem: str | None = None
    is_pickle: bool = False
    path_tells: bool = True  # not where it is named unlike the dumps beside it

    @property
    def rank(self) -> int | None:
        own = self.dump.rank if self.dump else None
        return rank_in_name(self.path) if own is None and self.path_tells else own

    @property
    def family(self) -> str:
        """Its name without numbers: the dumps of a job are named alike."""
        return re.sub(r"\d+", "#", self.path.name)


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name tells: behind the word, else its last number."""
    found = _NAMED.search(path.name) or _LAST.search(path.name)
    rank = int(found[1]) if found else None
    return rank if rank is None or rank < MOST_RANKS else None


def read_dumps(paths: Iterable[Path]) -> Dumps:
    """The dumps in these files and folders, by rank. Raises NothingToDiagnose if there is none."""
    paths = list(paths)
    return _together(paths, [found for path in paths for found in _files(path)])


def dumps_in(contents: Iterable[tuple[Path, bytes]]) -> Dumps:
    """The same of files that are in memory; their paths are names. Raises NothingToDiagnose."""
    files = [_parsed(path, data) for path, data in contents]
    return _together([file.path for file in files], files)


def dump_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that are dumps, or should be. Raises NothingToDiagnose."""
    return (file.path for path in paths for file in _files(path))


def _together(paths: list[Path], files: list[_File]) -> Dumps:
    if not any(file.dump for file in files):
        raise NothingToDiagnose(_why_none(paths, files))
    by_rank: dict[int, tuple[Path, OneDump]] = {}
    problems = [f"{file.path}: {file.problem}" for file in files if file.problem]
    for file in files:
        if file.dump is None:
            continue
        if file.rank is None:
            problems.append(f"{file.path}: neither the file nor its name tells the rank")
            continue
        earlier = by_rank.get(file.rank)
        if earlier is not None:
            problems.append(f"rank {file.rank} has several dumps; the newest was read")
        if earlier is None or earlier[1].worth < file.dump.worth:
            by_rank[file.rank] = (file.path, file.dump)
    ranks = tuple(
        RankCalls(rank, dump.calls, dump.groups, str(path))
        for rank, (path, dump) in sorted(by_rank.items())
    )
    if not ranks:
        raise NothingToDiagnose("; ".join(problems))
    lost = _lost(ranks, files)
    return Dumps(ranks, lost, tuple(dict.fromkeys([*problems, *_without(lost)])))


def _files(path: Path) -> Iterator[_File]:
    """The dumps in a folder, or one file. What else lies in a folder is passed over."""
    try:
        if not path.is_dir():
            yield _read(path)
            return
        inside = sorted(each for each in path.iterdir() if each.is_file())
    except OSError as error:
        raise NothingToDiagnose(f"{path}: cannot be read ({error.strerror})") from error
    if len(inside) > MAX_FILES:
        raise NothingToDiagnose(f"{path}: holds more than {MAX_FILES:,} files")
    found = _read_all(inside)
    families = {file.family for file in found if file.dump}
    for file in found:
        if file.dump or file.family in families or not families:
            yield file
        elif file.is_pickle:
            yield replace(file, path_tells=False)


def _read_all(paths: list[Path]) -> list[_File]:
    """Large dumps by several processes: a thousand of them take minutes otherwise."""
    workers = min(os.cpu_count() or 1, MAX_WORKERS)
    if workers == 1 or sum(map(_size, paths)) < WORTH_WORKERS:
        return [_read(path) for path in paths]
    from concurrent.futures import ProcessPoolExecutor  # they load more than most looks take
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, get_context("forkserver")) as pool:
        return list(pool.map(_read, paths, chunksize=4))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path) -> _File:
    try:
        if not may_be_dump(read_up_to(path, _HEAD)):
            empty = path.stat().st_size == 0
            return _File(path, None, "it is empty" if empty else _NO_DUMP)
        data = read_up_to(path, MAX_BYTES + 1)
    except OSError as error:
        return _File(path, None, f"cannot be read ({error.strerror or error})")
    return _parsed(path, data)


def _parsed(path: Path, data: bytes) -> _File:
    if len(data) > MAX_BYTES:
        return _File(path, None, f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return _File(path, parse_dump(data))
    except NotADump:
        return _File(path, None, _NO_DUMP)
    except BadDump as error:
        return _File(path, None, str(error), is_pickle=is_pickle(data))


def _lost(ranks: tuple[RankCalls, ...], files: list[_File]) -> tuple[LostDump, ...]:
    """Ranks of the job without calls, as far as the others know of them."""
    present = {each.rank for each in ranks}
    broken = {
        file.rank: f"{file.path.name}: {file.problem}"
        for file in files
        if file.problem and file.rank is not None and file.rank not in present
    }
    told = {group.members for each in ranks for group in each.groups}
    everyone = set[int]().union(*told)
    if not everyone:  # gloo's do not tell
        everyone = set(range(min(max(present | set(broken)) + 1, MAX_LOST)))
    missing = sorted(everyone - present)[:MAX_LOST]
    return tuple(LostDump(rank, broken.get(rank)) for rank in missing)


def _without(lost: tuple[LostDump, ...]) -> Iterator[str]:
    nothing = [each.rank for each in lost if each.reason is None]
    if nothing:
        yield f"no dump of {rank_list(nothing)} was found"


def _why_none(paths: list[Path], files: list[_File]) -> str:
    shown = ", ".join(str(path) for path in paths[:3])
    if len(paths) == 1 and not paths[0].is_dir():
        return f"{shown}: {files[0].problem}"
    why = next(
        (
            f" ({file.path.name}: {file.problem})"
            for file in files
            if file.is_pickle or _NAMED.search(file.path.name)
        ),
        "",
    )
    return (
        f"{shown}: neither a recorded run nor dumps of torch's flight recorder{why}; torch writes "
        "them where TORCH_FR_DUMP_TEMP_FILE says, when a collective of NCCL times out"
    )
