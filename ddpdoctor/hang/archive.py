"""The evidence on a hang in one file: what was seen of processes, dumps and logs as they were.

A colleague's archive is foreign: it is read in memory, nothing of it is written anywhere, and its
sizes and numbers are bounded.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from ddpdoctor.credentials import masked_text
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.events import MOST_RANKS
from ddpdoctor.hang.snapshot import HangSnapshot, LoaderWorker, RankProcess, ThreadStack
from ddpdoctor.regular import opened, read_up_to
from ddpdoctor.stackframes import Frame

VERSION: Final = 1
MAX_PACKED: Final = 128 * 1024 * 1024
MAX_UNPACKED: Final = 512 * 1024 * 1024
MAX_MEMBERS: Final = 20_000
MAX_LOG: Final = 8 * 1024 * 1024  # of each log: its first and last half
MAX_DUMP: Final = 32 * 1024 * 1024
MAX_JOBS: Final = 1_000
_Kind = TypeVar("_Kind")
_MANIFEST: Final = "ddpdoctor-hang.json"
_SNAPSHOT: Final = re.compile(r"snapshot-\d{1,4}\.json")
_INSIDE: Final = re.compile(r"(dumps|logs)/(\d{1,5}-[^/\x00]{1,255})")


@dataclass(frozen=True)
class Manifest:
    """What the archive says of itself."""

    version: int
    host: Annotated[str, Meta(max_length=255)]
    taken: Annotated[str, Meta(max_length=40)]  # UTC


@dataclass(frozen=True)
class Evidence:
    """What an archive holds, by the names that the files had."""

    manifest: Manifest
    snapshots: tuple[HangSnapshot, ...]
    dumps: tuple[tuple[Path, bytes], ...]
    logs: tuple[tuple[Path, bytes], ...]


class _BadArchive(Exception):
    """The message is the reason."""


def write_archive(
    folder: Path,
    host: str,
    snapshots: Sequence[HangSnapshot],
    dumps: Iterable[Path] = (),
    logs: Iterable[Path] = (),
) -> Path:
    """A new file in the folder, for its owner only. Credentials in sources and logs are masked."""
    taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = re.sub(r"[^A-Za-z0-9.\-]", "_", host)[:60]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ddpdoctor-hang-{name}-{taken}-{os.getpid()}.tar.gz"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as tar:
        _add(tar, _MANIFEST, msgspec.json.encode(Manifest(VERSION, host, taken)))
        for index, snapshot in enumerate(snapshots):
            _add(tar, f"snapshot-{index}.json", msgspec.json.encode(without_secrets(snapshot)))
        for index, each in enumerate(dumps):
            _add(tar, f"dumps/{index}-{each.name}", read_up_to(each, MAX_DUMP))
        for index, each in enumerate(logs):
            text = masked_text(_ends_of(each).decode("utf-8", "replace"))
            _add(tar, f"logs/{index}-{each.name}", text.encode())
    return path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


def _ends_of(path: Path) -> bytes:
    with opened(path) as fd, open(fd, "rb", closefd=False) as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(MAX_LOG // 2)
        file.seek(max(len(head), size - MAX_LOG // 2))
        return head + file.read(MAX_LOG // 2)


def without_secrets(snapshot: HangSnapshot) -> HangSnapshot:
    """The snapshot with what looks like a credential masked in the source lines."""
    return replace(snapshot, ranks=tuple(_rank_without(rank) for rank in snapshot.ranks))


def _rank_without(rank: RankProcess) -> RankProcess:
    return replace(
        rank,
        threads=tuple(map(_stack_without, rank.threads)),
        workers=tuple(map(_worker_without, rank.workers)),
    )


def _worker_without(worker: LoaderWorker) -> LoaderWorker:
    return replace(worker, stack=_stack_without(worker.stack)) if worker.stack else worker


def _stack_without(stack: ThreadStack) -> ThreadStack:
    return replace(stack, frames=tuple(map(_frame_without, stack.frames)))


def _frame_without(frame: Frame) -> Frame:
    condition = frame.condition
    return replace(
        frame,
        text=masked_text(frame.text) if frame.text else frame.text,
        condition=condition and replace(condition, text=masked_text(condition.text)),
    )


def is_archive(path: Path) -> bool:
    """Whether a file is packed like an archive of ours."""
    try:
        return path.is_file() and read_up_to(path, 2) == b"\x1f\x8b"
    except OSError:
        return False


def read_archive(path: Path) -> Evidence:
    """What a colleague packed. Raises NothingToDiagnose."""
    try:
        members = _members(read_up_to(path, MAX_PACKED + 1))
        return _evidence(members)
    except OSError as error:
        reason = error.strerror or str(error)
    except _BadArchive as error:
        reason = str(error)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, MemoryError):
        reason = "it is damaged"
    raise NothingToDiagnose(f"{path}: {reason}")


def _members(packed: bytes) -> dict[str, bytes]:
    if len(packed) > MAX_PACKED:
        raise _BadArchive(f"it is larger than {MAX_PACKED >> 20} MiB")
    with gzip.open(io.BytesIO(packed)) as file:
        plain = file.read(MAX_UNPACKED + 1)
    if len(plain) > MAX_UNPACKED:
        raise _BadArchive(f"it unpacks to more than {MAX_UNPACKED >> 20} MiB")
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
        for member in tar:
            if len(found) >= MAX_MEMBERS:
                raise _BadArchive(f"it holds more than {MAX_MEMBERS:,} files")
            inside = tar.extractfile(member) if member.isreg() else None
            if inside is not None:
                found[member.name] = inside.read()
    return found


def _evidence(members: Mapping[str, bytes]) -> Evidence:
    if _MANIFEST not in members:
        raise _BadArchive("it is no archive of `ddpdoctor diagnose -o`")
    manifest = _decoded(members[_MANIFEST], Manifest, _MANIFEST)
    if manifest.version > VERSION:
        raise _BadArchive(f"it was written by a newer ddpdoctor (version {manifest.version})")
    names = sorted(name for name in members if _SNAPSHOT.fullmatch(name))[:MAX_JOBS]
    snapshots = tuple(_checked(_decoded(members[name], HangSnapshot, name)) for name in names)
    inside = [(found, data) for name, data in members.items() if (found := _INSIDE.fullmatch(name))]
    of_kind: dict[str, list[tuple[Path, bytes]]] = {"dumps": [], "logs": []}
    for found, data in inside:
        of_kind[found[1]].append((Path(found[2].partition("-")[2]), data))
    return Evidence(manifest, snapshots, tuple(of_kind["dumps"]), tuple(of_kind["logs"]))


def _decoded(data: bytes, kind: type[_Kind], name: str) -> _Kind:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _BadArchive(f"{name} in it is not as expected ({str(error)[:200]})") from None


def _checked(snapshot: HangSnapshot) -> HangSnapshot:
    """Numbers that a check counts up to are numbers that a job can have."""
    numbers = [rank.rank for rank in snapshot.ranks] + [dead.rank for dead in snapshot.dead]
    size = snapshot.job.world_size
    if any(number is not None and not 0 <= number < MOST_RANKS for number in numbers) or not (
        size is None or 0 < size <= MOST_RANKS
    ):
        raise _BadArchive("it tells of ranks that no job has")
    return snapshot
