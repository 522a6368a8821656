"""Every collective of the process, from Python and from C++, with arrival and completion.

A kernel stands in front of each `c10d` operation: stamp, call the backend's kernel exactly once,
stamp again. An error of the backend is noted and goes on as it was. The completion comes from the
Work's future, on a thread of the backend.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from dataclasses import dataclass
from itertools import count
from types import CodeType, FrameType
from typing import Any, Final

import torch
import torch.distributed as dist

from ddpdoctor.events import Flag, GroupInfo, Kind, Op
from ddpdoctor.modelevents import MOST_SUMMED
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.buckets import Buckets
from ddpdoctor.recorder.callsite import CallSites, FrameWalk
from ddpdoctor.recorder.exchanged import Exchanged
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.pending import Pending
from ddpdoctor.recorder.phases import BlockingCall, Phases
from ddpdoctor.recorder.signatures import Signature, extent
from ddpdoctor.recorder.timers import AnyFile, DeviceTimedFile

_SENDS: Final = frozenset({"send", "recv"})  # torch.distributed's functions that block
# As plain integers, which are much cheaper to combine than those of an IntFlag.
_COLLECTIVE: Final = int(Kind.COLLECTIVE)
_ALL_REDUCE: Final = int(Op.ALL_REDUCE)
_BLOCKING: Final = int(Flag.BLOCKING)
_BUCKET: Final = int(Flag.BUCKET)
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
_UNTIMED: Final = int(Flag.UNTIMED)
_now, _thread = time.monotonic_ns, threading.get_ident
_SMALL: Final = 8 * MOST_SUMMED  # bytes of an all-reduce whose numbers may be looked at
_SHUTDOWN_SECONDS: Final = 5.0  # for a group to call back; a peer that comes later is not awaited


@dataclass(slots=True)
class _Group:
    """A process group that was seen: its number here, and the sequence numbers to come."""

    index: int
    collectives: count[int]
    point_to_point: count[int]  # sends and receives


@dataclass(slots=True)
class _Issued:
    """A collective between the two stamps of its kernel."""

    serial: int
    group: _Group
    on_host: bool
    blocking: BlockingCall | None
    timed: bool = True
    issued_ns: int = 0
    only_waiting_tells: bool = False  # when it completes


@dataclass(slots=True)
class Awaited:
    """A call of torch.distributed that blocks: it will wait itself for what it issued."""

    code: CodeType
    issued: _Issued


class Collectives:
    """Installs the kernels and writes a record for each call. `remove` takes them away again."""

    def __init__(
        self, file: AnyFile, facts: FactsFile, phases: Phases, sites: CallSites, guard: Guard
    ) -> None:
        self._file = file
        self._device = file if isinstance(file, DeviceTimedFile) else None
        self._facts = facts
        self._phases = phases
        self._sites = sites
        self._guard = guard
        self._groups: dict[str, _Group] = {}
        self._groups_lock = threading.RLock()  # a signal's handler may come within
        self.caller = FrameWalk(lambda file: not file.startswith(_BETWEEN_FOLDERS)).innermost
        self._pending = Pending()
        self._kept: list[dist.ProcessGroup] = []  # still to call back when they were destroyed
        self._awaited: Awaited | None = None
        self.issued = 0
        self.buckets = Buckets()
        self._untimed: list[_Issued] = []  # buckets of the running backward
        self.in_pre_forward = False
        self.exchanged: Exchanged | None = None  # what looks at the script's own calls
        self._registration = private.KernelRegistration(self._kernel)
        always = Guard(lambda error: None)  # calls are pending also when recording has gone off
        self._shutdown = private.ShutdownHook(lambda group: always.run(self._ends, group))

    def remove(self) -> None:
        """Uninstall, then wait for completions that are still to come, as gloo itself would."""
        self._registration.remove()
        self._pending.wait()
        self._shutdown.remove()

    def _ends(self, group: dist.ProcessGroup) -> None:
        known = self._groups.get(private.group_key(group))
        if known is not None and not self._pending.wait(known, _SHUTDOWN_SECONDS):
            self._kept.append(group)

    def _kernel(
        self, operation: private.CollectiveOp, redispatch: private.Kernel, behind: Any
    ) -> private.Kernel:
        signature = Signature.of(operation)
        guard, before, after = self._guard, self._before, self._after
        failed = self._failed

        def kernel(keyset: Any, *arguments: Any) -> Any:
            issued = guard.run(before, signature, arguments, sys._getframe().f_back)
            try:
                result = redispatch(keyset & behind, *arguments)
            except BaseException:
                guard.run(failed, issued, signature, arguments)
                raise
            if issued is not None:
                issued.issued_ns = _now()
                if issued.timed and not issued.only_waiting_tells:
                    guard.run(after, issued, result)
            return result

        return private.without_dynamo(kernel)

    def _before(
        self, signature: Signature, arguments: tuple[Any, ...], frame: FrameType | None
    ) -> _Issued | None:
        arrived = _now()
        group = self._group(private.unbox_group(arguments[signature.group]))
        self.issued += 1
        if not self._phases.switch.on:  # only counted: the others' numbers are to stay the same
            next(_numbers(group, signature))
            return None
        nbytes, on_host = extent(arguments[signature.tensors])
        caller = self.caller(frame)
        flags, bucket = signature.flags, -1
        on_thread = _thread() == self._phases.thread
        if signature.op is Op.ALL_REDUCE and _is_reducer(caller):
            flags |= _BUCKET
            bucket = self.buckets.take(nbytes)
            if bucket >= 0 and on_thread:
                return self._issue_bucket(bucket, group, nbytes, on_host, arrived)
        blocking = None
        blocks = on_thread and self._blocks(signature, arguments, caller)
        if blocks and (on_host or self._device is not None):
            flags |= _BLOCKING
            blocking = self._phases.blocking_call(arrived) if on_host else None
        peer = -1 if signature.peer is None else int(arguments[signature.peer])
        site, seq = self._sites.here(caller), next(_numbers(group, signature))
        serial = self._file.add(
            _COLLECTIVE, signature.op, flags, self._phases.depth if on_thread else 0,
            self._phases.step_of_record, self._phases.sync, seq, group.index, bucket, site, peer,
            arrived, 0, 0, nbytes,
        )  # fmt: skip
        issued = _Issued(serial, group, on_host, blocking)
        if on_thread and not flags & _BUCKET and self.exchanged is not None:
            self._look_into(signature, arguments, caller, (site, seq, nbytes if on_host else -1))
        if blocks and caller is not None:
            self._awaited = Awaited(caller.f_code, issued)
            issued.only_waiting_tells = (
                on_host
                and caller.f_code.co_filename == private.WAITING_FILE
                and signature.is_synchronous(arguments)
            )
        return issued

    def _issue_bucket(
        self, bucket: int, group: _Group, nbytes: int, on_host: bool, arrived: int
    ) -> _Issued:
        """What all buckets of a backward have in common was found out when it began."""
        of = self.buckets
        timed = of.timed or not on_host
        serial = self._file.add(
            _COLLECTIVE, _ALL_REDUCE, _BUCKET if timed else _BUCKET | _UNTIMED, of.depth,
            of.step, of.sync, next(group.collectives), group.index, bucket, of.site, -1,
            arrived, 0, 0, nbytes,
        )  # fmt: skip
        issued = _Issued(serial, group, on_host, None, timed)
        if not timed:
            self._untimed.append(issued)
        return issued

    def _look_into(
        self,
        signature: Signature,
        arguments: tuple[Any, ...],
        caller: FrameType | None,
        call: tuple[int, int, int],
    ) -> None:
        """At what a call of the script exchanges: of its line, number, and bytes on the host."""
        site, seq, nbytes = call
        if self.exchanged is None or not site:
            return
        if signature.op is Op.ALL_REDUCE and 0 <= nbytes <= _SMALL:
            self.exchanged.sums(arguments[0], arguments[signature.group], caller, site, seq)
        elif signature.op is Op.ALL_GATHER and torch.is_grad_enabled():
            self.exchanged.gathers(arguments[1], caller, site)

    def take_awaited(self, caller: FrameType | None) -> Awaited | None:
        """The blocking call that this function made last, if nobody has waited for it yet."""
        awaited = self._awaited
        if awaited is None or caller is None or awaited.code is not caller.f_code:
            return None
        self._awaited = None
        return awaited

    def was_awaited(self, awaited: Awaited, completed: bool) -> None:
        """Its wait is over; of some operations nothing else tells when they complete.

        One that raised, as at its timeout, has not completed.
        """
        if awaited.issued.only_waiting_tells:
            self._over(awaited.issued, _now(), completed)

    def _failed(
        self, issued: _Issued | None, signature: Signature, arguments: tuple[Any, ...]
    ) -> None:
        """The backend raised: the call ends here, and its number may still be free."""
        if issued is not None:
            now = time.monotonic_ns()
            if issued.blocking is not None:
                issued.blocking.end_ns = now
            self._file.finish(issued.serial, now)
            self._file.flag(issued.serial, Flag.FAILED)
            if not issued.timed:
                self._untimed.remove(issued)
        group = private.unbox_group(arguments[signature.group])
        self._group(group).collectives = count(private.sequence_number(group))

    def _after(self, issued: _Issued, result: Any) -> None:
        if not issued.on_host:
            self._after_on_device(issued, result)
            return

        def completed(future: Any) -> None:
            now = time.monotonic_ns()
            self._guard.run(self._over, issued, now, private.succeeded(future))
            self._pending.called_back(issued.serial)  # also when recording has gone off

        completion = None
        try:
            self._pending.add(issued.serial, issued.group)
            completion = private.when_complete(result, completed)
        finally:
            if completion is not private.Completion.CALLBACK:
                self._pending.remove(issued.serial)
        if completion is private.Completion.DONE:
            self._over(issued, time.monotonic_ns(), True)
        elif completion is private.Completion.UNKNOWN:
            if self._awaited is not None and self._awaited.issued is issued:
                issued.only_waiting_tells = True
            else:
                self._file.finish(issued.serial, 0, issued.issued_ns)

    def backward_ended(self, now: int) -> None:
        """The training thread has waited for all buckets; with `now` 0 it is not known when."""
        for issued in self._untimed:
            self._file.finish(issued.serial, now, issued.issued_ns)
        self._untimed.clear()

    def _after_on_device(self, issued: _Issued, result: Any) -> None:
        """There a future completes when the work is enqueued; a mark tells when it is done."""
        completion = private.Completion.UNKNOWN
        if self._device is not None:
            mark = functools.partial(self._guard.run, self._device.completes, issued.serial)
            completion = private.when_complete(result, mark)
        if completion is not private.Completion.CALLBACK:
            self._file.finish(issued.serial, 0, issued.issued_ns)

    def _over(self, issued: _Issued, now: int, completed: bool) -> None:
        if issued.blocking is not None:
            issued.blocking.end_ns = now
        self._file.finish(issued.serial, now if completed else 0, issued.issued_ns)

    def _blocks(
        self, signature: Signature, arguments: tuple[Any, ...], caller: FrameType | None
    ) -> bool:
        """Whether the training thread will stand in this call until it completes."""
        if signature.blocks or (self.in_pre_forward and signature.op is Op.BROADCAST):
            return True
        if signature.is_async is not None:
            return signature.is_synchronous(arguments)
        return caller is not None and caller.f_code.co_name in _SENDS

    def _group(self, group: dist.ProcessGroup) -> _Group:
        known = self._groups.get(group.group_name)
        return known if known is not None else self._meet(group)

    def _meet(self, group: dist.ProcessGroup) -> _Group:
        name = private.group_key(group)
        with self._groups_lock:
            if name not in self._groups:
                members = tuple(dist.get_process_group_ranks(group))
                self._facts.group(GroupInfo(name, members))
                numbers = count(private.sequence_number(group))
                self._groups[name] = _Group(len(self._groups), numbers, count())
            return self._groups[name]


# past this package and the compiler's wrappers
_BETWEEN_FOLDERS: Final[tuple[str, ...]] = (
    __file__.rsplit("/", 1)[0] + "/",
    torch.__file__.rsplit("/", 1)[0] + "/_dynamo/",
    torch.__file__.rsplit("/", 1)[0] + "/_compile.py",
    torch.__file__.rsplit("/", 1)[0] + "/_ops.py",
)


def _is_reducer(caller: FrameType | None) -> bool:
    """Where there is no Python caller, DDP calls from a thread of the autograd engine."""
    return caller is None or caller.f_code.co_name == private.ENGINE_FUNCTION


def _numbers(group: _Group, signature: Signature) -> count[int]:
    return group.point_to_point if signature.flags & _POINT_TO_POINT else group.collectives
