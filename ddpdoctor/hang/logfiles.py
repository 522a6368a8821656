"""Finds and reads the logs of a job: files, torchrun's log folder, and its error files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ddpdoctor.credentials import masked_text
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.events import MOST_RANKS
from ddpdoctor.hang.calls import CallSite
from ddpdoctor.hang.dumps import rank_in_name
from ddpdoctor.hang.joblog import Failure, JobLog
from ddpdoctor.hang.logreader import MAX_MESSAGE, LogReader
from ddpdoctor.regular import opened, read_up_to
from ddpdoctor.stackframes import Origin, origin_of

MAX_HEAD: Final = 16 * 1024 * 1024  # of a log: what came first, and what came last
MAX_TAIL: Final = 48 * 1024 * 1024
MAX_LOGS: Final = 10_000
MAX_ERROR_FILE: Final = 1024 * 1024
MAX_DEPTH: Final = 5  # torchrun: RUN/attempt_0/RANK/stderr.log
ERROR_FILE: Final = "error.json"
_ENDINGS: Final = (".log", ".out", ".err", ".txt")
_NEVER_TEXT: Final = re.compile(rb"\x80|\x1f\x8b|\s*\{")  # a pickle, an archive, JSON
_FRAME: Final = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,200})')


def read_logs(paths: Iterable[Path]) -> JobLog:
    """What these logs, log folders and error files say. Raises NothingToDiagnose."""
    files = list(log_files(paths))
    if not files:
        raise NothingToDiagnose("no log was found there: files ending in " + ", ".join(_ENDINGS))
    reader, problems = LogReader(), []
    for file in sorted(files, key=lambda each: each.name == ERROR_FILE):  # they know best
        try:
            if file.name == ERROR_FILE:
                failure = error_in(read_up_to(file, MAX_ERROR_FILE), _rank_of(file))
                if failure is not None:
                    reader.failed(failure)
            else:
                reader.read(_lines(file), _rank_of(file))
        except OSError as error:
            problems.append(f"{file}: cannot be read ({error.strerror or error})")
    if len(problems) == len(files):
        raise NothingToDiagnose("; ".join(problems[:3]))
    return reader.result(map(str, files), problems)


def log_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The logs and error files there. Raises NothingToDiagnose."""
    return (file for path in paths for file in _files(path))


def logs_in(contents: Iterable[tuple[Path, bytes]]) -> JobLog:
    """The same of files that are in memory; their paths are names."""
    reader, names = LogReader(), []
    for path, data in sorted(contents, key=lambda each: each[0].name == ERROR_FILE):
        names.append(str(path))
        if path.name != ERROR_FILE:
            reader.read(_split(data), _rank_of(path))
        elif failure := error_in(data, _rank_of(path)):
            reader.failed(failure)
    return reader.result(names)


def are_logs(paths: Iterable[Path]) -> bool:
    """Whether all of these are files that are named like logs, and no dumps inside."""
    return all(map(_is_log, paths))


def _is_log(path: Path) -> bool:
    try:
        if path.name == ERROR_FILE:
            return path.is_file()
        named = path.suffix in _ENDINGS and path.is_file()
        return named and not _NEVER_TEXT.match(read_up_to(path, 64))
    except OSError:
        return False


def error_in(data: bytes, rank: int | None) -> Failure | None:
    """What one of torchrun's error files says; None where that is nothing."""
    try:
        document = json.loads(data)
        told = document["message"]
        text = told if isinstance(told, str) else str(told["message"])
        more = {} if isinstance(told, str) else told.get("extraInfo", {})
        stack, when = str(more.get("py_callstack", "")), _seconds(more.get("timestamp"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if rank is None:
        return None
    error, _, message = text.partition(":")
    named = re.fullmatch(r"[\w.]{1,200}", error) is not None
    message = masked_text((message if named else text).strip())[:MAX_MESSAGE]
    return Failure(
        rank, 0, None, error.rsplit(".", 1)[-1] if named else "", message, _site_in(stack),
        when=when, clock=ERROR_FILE,
    )  # fmt: skip


def _seconds(stamp: object) -> float | None:
    """As torchrun writes it: whole seconds, as text."""
    text = str(stamp)
    return float(text) if text.isdecimal() and len(text) < 12 else None


def _site_in(stack: str) -> CallSite | None:
    sites = [CallSite(f[1], int(f[2]), f[3].strip()) for f in _FRAME.finditer(stack)]
    users = [site for site in sites if origin_of(site.file) is Origin.USER]
    return next(iter([*reversed(users), *reversed(sites)]), None)


def _files(path: Path) -> Iterator[Path]:
    try:
        if path.is_dir():
            yield from _inside(path)
        elif path.exists():
            yield path
        else:
            raise NothingToDiagnose(f"{path}: there is no such file")
    except OSError as error:
        raise NothingToDiagnose(f"{path}: cannot be read ({error.strerror})") from error


def _inside(folder: Path) -> list[Path]:
    found: list[Path] = []
    todo = [(folder, 0)]
    while todo and len(found) <= MAX_LOGS:
        here, depth = todo.pop()
        for each in sorted(here.iterdir()):
            if each.is_dir() and not each.is_symlink():
                todo += [(each, depth + 1)] if depth < MAX_DEPTH else []
            elif each.name == ERROR_FILE or each.suffix in _ENDINGS:
                found.append(each)
    if len(found) > MAX_LOGS:
        raise NothingToDiagnose(f"{folder}: holds more than {MAX_LOGS:,} logs")
    return found


def _rank_of(file: Path) -> int | None:
    """By torchrun's folder of each local rank, or by a name that tells it."""
    if file.name in (ERROR_FILE, "stderr.log", "stdout.log"):
        name = file.parent.name
        return int(name) if name.isdecimal() and int(name) < MOST_RANKS else None
    return rank_in_name(file) if re.search(r"rank", file.name, re.IGNORECASE) else None


def _lines(file: Path) -> Iterator[str]:
    """Of a log that is too long, what is at its beginning and at its end."""
    with opened(file) as fd, open(fd, "rb", closefd=False) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        yield from _split(stream.read(MAX_HEAD))
        if size > MAX_HEAD:
            stream.seek(max(MAX_HEAD, size - MAX_TAIL))
            yield from _split(stream.read(MAX_TAIL))


def _split(data: bytes) -> Iterator[str]:
    return (line.decode("utf-8", "replace").rstrip("\r") for line in data.split(b"\n"))
