"""Under `ddpdoctor run`: how this process joins its process group, noted before it has.

A call of init_process_group that fails or never comes back leaves no record of a model, so a note
of it stands in the run folder beforehand (`ddpdoctor.launchrecord`). It is taken away when
recording begins.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist

from ddpdoctor.ifnames import is_loopback
from ddpdoctor.launchfacts import (
    MOST_RANKS,
    Joining,
    Outcome,
    PortHolder,
    Process,
    Unsynced,
)
from ddpdoctor.launchrecord import note_path
from ddpdoctor.notices import mention
from ddpdoctor.preflight.collect import as_launched, of_this_node
from ddpdoctor.preflight.interfaces import resolve
from ddpdoctor.preflight.launcher import launch_of
from ddpdoctor.preflight.ports import foreign_holder_of
from ddpdoctor.processfacts import encoded
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.runnames import named_run_id
from ddpdoctor.settings import settings

LOOK_AFTER_S: Final = 2.0  # a call that comes back sooner costs two small files and nothing more
_MOST_APART_S: Final = 600.0  # between looks at one that does not come back
_MOST_TEXT: Final = 200  # characters of a place


@dataclass(frozen=True)
class Asked:
    """What init_process_group was asked for; None where nothing says it."""

    rank: int | None
    world_size: int | None
    place: str  # as in Joining
    tcp: bool

    @property
    def port(self) -> int | None:
        _, _, port = self.place.rpartition(":")
        return int(port) if port.isdecimal() and not self.place.startswith("/") else None

    @property
    def problems(self) -> tuple[str, ...]:
        if self.rank is None or self.world_size is None or self.rank < self.world_size:
            return ()
        return (f"rank={self.rank} is not below world_size={self.world_size}",)


def asked(
    call: Callable[..., object],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    variables: Mapping[str, str],
) -> Asked:
    """By the arguments of init_process_group, else by the address, else by the environment."""
    given = inspect.signature(call).bind(*arguments, **named).arguments
    method = str(given.get("init_method") or "env://")
    url = urlsplit(method)
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    by_store = given.get("store") is not None
    by_env = url.scheme == "env" and not by_store
    rank, world_size = (
        _number(given.get(name), query.get(name), variables.get(name.upper()) if by_env else None)
        for name in ("rank", "world_size")
    )
    place = "" if by_store else f"{url.hostname}:{url.port}" if url.scheme == "tcp" else url.path
    if by_env:
        place = f"{variables.get('MASTER_ADDR', '')}:{variables.get('MASTER_PORT', '')}"
    return Asked(rank, world_size, place[:_MOST_TEXT], url.scheme == "tcp" and not by_store)


def _number(*candidates: Any) -> int | None:
    """The first that is a number from 0 on; torch's own "not given" is -1."""
    for candidate in candidates:
        with suppress(TypeError, ValueError):
            if 0 <= int(candidate) < MOST_RANKS:
                return int(candidate)
    return None


class _State:
    watch: JoinWatch | None = None
    joined: ClassVar[set[str]] = set()  # the places
    recording = False  # then a further group is nothing new


class JoinWatch:
    """One call: its note is written at once, completed while it waits, and closed at its end."""

    def __init__(self, what: Asked, folder: Path) -> None:
        launched = as_launched(launch_of(os.environ))
        self.pid = os.getpid()
        self._asked = what
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process = replace(
            launched,
            rank=what.rank,
            world_size=what.world_size,
            problems=launched.problems + what.problems,
            joining=Joining(
                what.place, began_s=time.time(), again=what.place in _State.joined, tcp=what.tcp
            ),
        )
        self._path = note_path(folder, self._process)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        threading.Thread(target=self._look, name="ddpdoctor-join", daemon=True).start()

    def joined(self) -> None:
        _State.joined.add(self._asked.place)
        self._ends(Outcome.JOINED)

    def failed(self, error: Exception) -> None:
        """With all that may explain it, since the process is likely to end now."""
        from ddpdoctor.recorder.ending import masked

        self._over.set()
        self._look_around()
        self._ends(Outcome.FAILED, error=type(error).__name__, message=masked(str(error)))

    def interrupted(self, by: BaseException) -> None:
        self._ends(Outcome.ENDED, error=type(by).__name__)

    def trains_unsynced(self, unsynced: Unsynced) -> None:
        with self._lock:
            self._process = replace(self._process, unsynced=unsynced)
            self._write()

    def forget(self) -> None:
        """The record of this process says more."""
        self._over.set()
        with self._lock:
            self._path.unlink(missing_ok=True)
        for folder in (self._path.parent, self._path.parent.parent):
            with suppress(OSError):  # others are in it
                folder.rmdir()

    def _ends(self, outcome: Outcome, **more: Any) -> None:
        self._over.set()
        with self._lock:
            self._says(outcome=outcome, seconds=time.monotonic() - self._began, **more)
            self._write()

    def _look(self) -> None:
        """In a thread of its own, where the call takes long: what may hold it up, and how long."""
        pause_s = LOOK_AFTER_S
        if not self._over.wait(pause_s):
            Guard(_say_nothing).run(self._look_around)
        while not self._over.wait(pause_s):
            Guard(_say_nothing).run(self._still_waits)
            pause_s = min(2 * pause_s, _MOST_APART_S)

    def _still_waits(self) -> None:
        with self._lock:
            if not self._over.is_set():
                self._says(waited_s=time.monotonic() - self._began)
                self._write()

    def _look_around(self) -> None:
        around = of_this_node(self._process)
        holder = self._holder(around)
        with self._lock:
            if self._path.exists():
                self._process = replace(around, joining=self._process.joining)
                self._says(holder=holder)
                self._write()

    def _holder(self, around: Process) -> PortHolder | None:
        """Who else listens where rank 0, which is this process, should."""
        port = self._asked.port
        agents = around.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        if self._asked.rank != 0 or port is None or (agents and not self._asked.tcp):
            return None
        addresses = resolve(self._asked.place.rpartition(":")[0])
        own = {interface.address for interface in around.network.interfaces}
        if not any(is_loopback(address) or address in own for address in addresses):
            return None
        return foreign_holder_of(port)

    def _says(self, **changes: Any) -> None:
        if self._process.joining is not None:
            joining = replace(self._process.joining, **changes)
            self._process = replace(self._process, joining=joining)

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_bytes(encoded(self._process))
        unfinished.replace(self._path)


def begin(
    call: Callable[..., object], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> JoinWatch | None:
    """Before init_process_group; None where there is nothing to watch."""
    return Guard(_say_nothing).run(_begin, call, arguments, named)


def _begin(
    call: Callable[..., object], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> JoinWatch | None:
    chosen, run_id = settings(), named_run_id(os.environ)
    if chosen.disable or run_id is None or _State.recording or dist.is_initialized():
        return None
    what = asked(call, arguments, named, os.environ)
    _State.watch = JoinWatch(what, Path(chosen.dir).absolute() / run_id)
    return _State.watch


def ended(watch: JoinWatch, error: BaseException | None) -> None:
    """After init_process_group. What is no Exception comes from a signal's handler."""
    if error is None:
        Guard(_say_nothing).run(watch.joined)
    elif isinstance(error, Exception):
        Guard(_say_nothing).run(watch.failed, error)
    else:
        Guard(_say_nothing).run(watch.interrupted, error)


def forget() -> None:
    """Recording begins in this process."""
    watch, _State.watch, _State.recording = _State.watch, None, True
    if watch is not None and watch.pid == os.getpid():  # a fork has its parent's
        Guard(_say_nothing).run(watch.forget)


def trains_unsynced(unsynced: Unsynced) -> None:
    watch = _State.watch
    if watch is not None and watch.pid == os.getpid():
        Guard(_say_nothing).run(watch.trains_unsynced, unsynced)


def _say_nothing(error: Exception) -> None:
    mention("how this process joins is not noted (%s: %s)", type(error).__name__, error)
