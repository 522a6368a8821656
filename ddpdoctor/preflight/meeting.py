"""Ranks meet over a store before training and tell each other their facts. Every wait is bounded.

It is the same store at the same address as that of the training, so that what would keep the ranks
of the training apart keeps these apart, too. No process group is made.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from ddpdoctor.baseline import NetworkBaseline
from ddpdoctor.errors import TorchMissing
from ddpdoctor.launchfacts import Process, Reach, Rendezvous
from ddpdoctor.preflight.interfaces import resolve
from ddpdoctor.preflight.launcher import Launch
from ddpdoctor.preflight.network import Member, Place, measure
from ddpdoctor.preflight.ports import holder_of
from ddpdoctor.processfacts import decoded, encoded

GRACE_S: Final = 1.0  # after all have come: a second process of a rank may still come
VERDICT_S: Final = 10.0  # beyond the time limit, for rank 0 to judge and to say so
_CONNECT_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.1
_ANSWER_S: Final = 5.0  # of a store that works
_READ_S: Final = 3.0  # for the others to read the verdict, before the store goes
_MOST_REPORTS: Final = 100_000
_ROOM: Final = 8  # for a status


@dataclass(frozen=True)
class Gathered:
    """What the processes that came told of themselves."""

    processes: tuple[Process, ...]
    unreadable: int = 0


class Meeting:
    """One process's part in it. Raises TorchMissing: the store is torch's."""

    def __init__(self, launch: Launch, own: Process, timeout_s: float) -> None:
        _import_torch()  # takes seconds, which are nobody's delay
        self._launch = launch
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._prefix = f"ddpdoctor/check/{launch.job}"
        self._store: Any = None
        self._ticket = 0
        self.judges = False
        self.is_late = False
        self.rendezvous = self._open(launch.address or "", launch.port or 0)
        if self.rendezvous.reach is Reach.REACHED:
            try:
                self._join(own)
            except (OSError, RuntimeError):  # it was there, and answers no more
                self._store = None
                self.rendezvous = replace(self.rendezvous, reach=Reach.FOREIGN)

    def _open(self, address: str, port: int) -> Rendezvous:
        met = Rendezvous(address, port, Reach.NO_NAME, resolve(address))
        if met.resolved:
            reach = self._listen(address, port) if self._launch.listens else self._come(met)
            holder = holder_of(port) if reach is Reach.TAKEN else None
            met = replace(met, reach=reach, holder=holder)
        return replace(met, waited_s=self.waited_s)

    def _listen(self, address: str, port: int) -> Reach:
        """Rank 0's part: it serves the store, and is a client of it at its own address."""
        try:
            self._store = self._made(address, port, _ANSWER_S, listens=True)
        except (OSError, RuntimeError) as error:
            if "EADDRINUSE" not in str(error):
                return Reach.NO_ANSWER  # it listens, and its own address does not lead there
            self._store = self._store_of_another(address, port)
            return Reach.TAKEN if self._store is None else Reach.REACHED
        if self._store is None:
            return Reach.NO_ANSWER
        self._store.set(f"{self._prefix}/open", "")
        return Reach.REACHED

    def _store_of_another(self, address: str, port: int) -> Any:
        """The store of another process that is rank 0 of this job, too; else None."""
        try:
            store = self._made(address, port, _ANSWER_S, listens=False)
            return store if store is not None and store.check([f"{self._prefix}/open"]) else None
        except (OSError, RuntimeError):
            return None

    def _come(self, met: Rendezvous) -> Reach:
        try:
            self._store = self._made(met.address, met.port, self._left_s(), listens=False)
        except (OSError, RuntimeError):
            self._store = None
        return Reach.REACHED if self._store is not None else _why_not(met.address, met.port)

    def _made(self, address: str, port: int, seconds: float, *, listens: bool) -> Any:
        """A store within so many seconds, or None; what torch raises is raised here."""
        found: list[Any] = []
        errors: list[OSError | RuntimeError] = []

        def make() -> None:
            try:
                found.append(_store(address, port, max(1.0, seconds), listens=listens))
            except (OSError, RuntimeError) as error:
                errors.append(error)

        making = threading.Thread(target=make, name="ddpdoctor-store", daemon=True)
        making.start()
        making.join(seconds + _ANSWER_S)
        if errors:
            raise errors[0]
        return found[0] if found else None

    def _join(self, own: Process) -> None:
        self._ticket = int(self._store.add(f"{self._prefix}/tickets", 1))
        self._store.set(f"{self._prefix}/facts/{self._ticket}", encoded(own))
        self.is_late = bool(self._store.check([f"{self._prefix}/verdict"]))
        first = own.rank == 0 and int(self._store.add(f"{self._prefix}/judge", 1)) == 1
        self.judges = first or self.is_late

    def gather(self, *, wait: bool) -> Gathered:
        """All that came; with `wait`, until every rank has or the time is over."""
        everyone = range(self._launch.world_size or 0)
        found: dict[int, Process | None] = {}
        complete_at: float | None = None
        try:
            while True:
                self._read_new(found)
                now = time.monotonic()
                ranks = {process.rank for process in found.values() if process is not None}
                if complete_at is None and ranks.issuperset(everyone):
                    complete_at = now
                graced = complete_at is not None and now - complete_at > GRACE_S
                if not wait or graced or self._left_s() <= 0:
                    break
                time.sleep(_LOOK_EVERY_S)
        except (OSError, RuntimeError):  # the store is gone: what was read so far counts
            pass
        known = sorted(found)
        processes = [process for ticket in known if (process := found[ticket]) is not None]
        return Gathered(tuple(processes), len(found) - len(processes))

    def _read_new(self, found: dict[int, Process | None]) -> None:
        count = int(self._store.add(f"{self._prefix}/tickets", 0))
        for ticket in range(1, min(count, _MOST_REPORTS) + 1):
            key = f"{self._prefix}/facts/{ticket}"
            if ticket not in found and self._store.check([key]):
                found[ticket] = decoded(self._store.get(key))

    def publish(self, status: int) -> None:
        """Tell the others how it ended, and keep the store until they have read that."""
        try:
            self._store.set(f"{self._prefix}/verdict", str(status))
            others = int(self._store.add(f"{self._prefix}/tickets", 0)) - 1
            deadline = time.monotonic() + _READ_S
            while time.monotonic() < deadline:
                if int(self._store.add(f"{self._prefix}/read", 0)) >= others:
                    break
                time.sleep(_LOOK_EVERY_S)
        except (OSError, RuntimeError):
            return

    def verdict(self) -> int | None:
        """The status that rank 0 published; None when none came in time."""
        key = f"{self._prefix}/verdict"
        try:
            while self._left_s() > -VERDICT_S:
                if self._store.check([key]):
                    content: bytes = self._store.get(key)[:_ROOM]
                    self._store.add(f"{self._prefix}/read", 1)
                    return int(content) if content.isdigit() else None
                time.sleep(_LOOK_EVERY_S)
        except (OSError, RuntimeError):
            return None
        return None

    def measure_network(self, own: Process) -> NetworkBaseline:
        """With all others; the time that it takes is nobody's delay. Every rank must call it."""
        from torch import distributed

        rank, world_size = self._launch.rank or 0, self._launch.world_size or 1
        prefix_store: Any = distributed.PrefixStore  # type: ignore[attr-defined]
        store = prefix_store(f"{self._prefix}/network", self._store)
        place = Place(own.host, own.network_id)
        member = Member(rank, world_size, self._launch.local_rank or 0, place, store)
        began = time.monotonic()
        found = measure(member, max(1.0, self._left_s()))
        self._deadline += time.monotonic() - began
        return found

    @property
    def waited_s(self) -> float:
        """Since this process came."""
        return time.monotonic() - self._began

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()


def _why_not(address: str, port: int) -> Reach:
    """What a plain connection meets there now."""
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return Reach.REFUSED
    except OSError:
        return Reach.NO_ANSWER
    return Reach.FOREIGN


def _import_torch() -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # each try of the store is logged else
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        raise TorchMissing(
            "ranks meet over torch's store, and torch is not installed here; `ddpdoctor check` "
            "without RANK and WORLD_SIZE looks at this node alone"
        ) from error


def _store(address: str, port: int, seconds: float, *, listens: bool) -> Any:
    from torch import distributed

    tcp_store: Any = distributed.TCPStore  # type: ignore[attr-defined]
    patience = datetime.timedelta(seconds=seconds)
    store = tcp_store(address, port, None, listens, patience, wait_for_workers=False)
    store.set_timeout(datetime.timedelta(seconds=_ANSWER_S))
    return store
