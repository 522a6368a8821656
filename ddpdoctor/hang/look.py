"""Looking at the jobs of this host: who the ranks are, two or three looks at each, one snapshot.

The second look comes after 0.3 s. A job that stood still until then gets a third one later, since
an ordinary step may be longer than that.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.hang import activity, arguments, inband, pyspy
from ddpdoctor.hang.aftermath import memory_kills, with_last_words
from ddpdoctor.hang.alike import started_with
from ddpdoctor.hang.jobs import JobMembers, Member, find_jobs
from ddpdoctor.hang.launchers import waiting_launchers
from ddpdoctor.hang.processes import Counters, Processes
from ddpdoctor.hang.pyspy import Dump
from ddpdoctor.hang.records import with_record
from ddpdoctor.hang.situation import situation
from ddpdoctor.hang.snapshot import (
    Answer,
    DeadRank,
    HangSnapshot,
    LoaderWorker,
    Movement,
    RankProcess,
    ThreadStack,
    Unsent,
)
from ddpdoctor.hang.sockets import Traffic, inodes_of, traffic
from ddpdoctor.hang.source import SourceReader

SECOND_LOOK_S: Final = 0.3
WATCH_S: Final = 1.5
_MOST_LAUNCHERS: Final = 3  # above torchrun: `ddpdoctor run`, a script around it
_MOST_UNSENT: Final = 3  # connections of a rank in which bytes wait
_MOST_NATIVE: Final = 2  # ranks whose C functions are read: one is the cause
_CALL_TIMEOUT_S: Final = 3.0  # of one py-spy; it takes 15 ms


@dataclass(frozen=True)
class _Seen:
    """One rank at one look."""

    at_s: float
    counters: Counters | None
    helpers: dict[int, Counters]  # of child processes, by pid
    sockets: dict[int, Traffic] | None  # its TCP connections, by inode
    dump: Dump


def take_snapshots(
    pid: int | None = None,
    timeout_s: float = 10.0,
    processes: Processes | None = None,
    watch_s: float = WATCH_S,
) -> list[HangSnapshot]:
    """The jobs on this host, or the one of this process; not those that end meanwhile."""
    began = time.monotonic()
    processes = processes or Processes()
    jobs = [
        job for job in find_jobs(processes, leave_out=[os.getpid()]) if _wanted(job, pid, processes)
    ]
    looking = _Looking(processes, began + timeout_s)
    jobs = looking.first(jobs)
    looking.again(jobs, SECOND_LOOK_S)
    if watch_s > SECOND_LOOK_S:
        looking.again([job for job in jobs if not looking.any_moved(job)], watch_s)
    snapshots = [looking.snapshot(job) for job in jobs]
    found = [snapshot for snapshot in snapshots if snapshot.ranks]
    with_ranks = {member.parent for job in jobs for member in job.members}
    left_s = timeout_s - (time.monotonic() - began)
    return found + waiting_launchers(processes, watch_s, with_ranks, pid, left_s)


def _wanted(job: JobMembers, pid: int | None, processes: Processes) -> bool:
    """Whether it is a rank of the job, or above one: torchrun, or what has started that."""
    if pid is None:
        return True
    parents = {member.parent for member in job.members}
    above = (over for parent in parents for over in _launchers(parent, processes))
    return pid in {member.pid for member in job.members} or pid in parents or pid in above


def _launchers(parent: int, processes: Processes) -> Iterator[int]:
    """What has started a parent of ranks, and what has started that."""
    for _ in range(_MOST_LAUNCHERS):
        stat = processes.stat(parent)
        if stat is None or stat.parent <= 1:
            return
        parent = stat.parent
        yield parent


class _Looking:
    """Keeps the looks at each process, the time limit and the sources read over them."""

    def __init__(self, processes: Processes, deadline_s: float) -> None:
        self._processes = processes
        self._source = SourceReader()
        self._deadline_s = deadline_s
        self._looks: dict[int, list[_Seen]] = {}

    def first(self, jobs: list[JobMembers]) -> list[JobMembers]:
        """The first look also settles which spawned processes are ranks, and their numbers."""
        members = [member for job in jobs for member in job.members]
        self._look([member.pid for member in members if not member.candidate])
        self._look([member.pid for member in members if member.candidate], with_locals=True)
        dumps = {pid: seen[0].dump for pid, seen in self._looks.items()}
        return [settled for job in jobs if (settled := _settled(job, dumps)) is not None]

    def again(self, jobs: list[JobMembers], after_s: float) -> None:
        pids = [member.pid for job in jobs for member in job.members]
        if not pids:
            return
        wake_s = min(min(self._looks[pid][0].at_s for pid in pids) + after_s, self._deadline_s)
        time.sleep(max(0.0, wake_s - time.monotonic()))
        self._look(pids)

    def _look(self, pids: list[int], *, with_locals: bool = False) -> None:
        counted = {pid: self._processes.counters(pid) for pid in pids}
        helpers, sockets = self._helpers(set(pids)), self._sockets(pids)
        now = time.monotonic()
        for pid, dump in self._dump(pids, with_locals=with_locals).items():
            seen = _Seen(now, counted[pid], helpers[pid], sockets.get(pid), dump)
            self._looks.setdefault(pid, []).append(seen)

    def _sockets(self, pids: list[int]) -> dict[int, dict[int, Traffic]]:
        """The connections of each process, if they may be told."""
        every = traffic() if pids else None
        if every is None:
            return {}
        opened = {pid: inodes_of(self._processes.folder(pid)) for pid in pids}
        return {
            pid: {inode: every[inode] for inode in inodes if inode in every}
            for pid, inodes in opened.items()
            if inodes is not None
        }

    def _helpers(self, ranks: set[int]) -> dict[int, dict[int, Counters]]:
        found: dict[int, dict[int, Counters]] = {pid: {} for pid in ranks}
        for pid, stat in self._processes.all().items() if ranks else ():
            if stat.parent in ranks and pid not in ranks:
                counters = self._processes.counters(pid)
                if counters is not None:
                    found[stat.parent][pid] = counters
        return found

    def _dump(self, pids: list[int], *, with_locals: bool = False) -> dict[int, Dump]:
        if not pids:
            return {}
        left_s = max(0.2, self._deadline_s - time.monotonic())
        return pyspy.dump_all(pids, min(_CALL_TIMEOUT_S, left_s), with_locals=with_locals)

    def any_moved(self, job: JobMembers) -> bool:
        return any(activity.moves(self._rank(member)) for member in job.members)

    def snapshot(self, job: JobMembers) -> HangSnapshot:
        ranks: list[RankProcess] = []
        ended: list[int | None] = []
        in_band = self._in_band(job)
        for member in job.members:
            rank = self._rank(member)
            if rank.state in ("Z", "X"):
                ended.append(member.rank)
            else:
                ranks.append(self._in_full(rank, member, in_band))
        watched_s = max((rank.movement.watched_s for rank in ranks), default=0.0)
        seen = HangSnapshot(
            job.job,
            socket.gethostname(),
            tuple(ranks),
            with_last_words(job, self._processes) if job.dead else (),
            watched_s,
            tuple(ended),
            memory_kills=self._memory_kills(job, ranks),
        )
        if arguments.decide(seen):
            return self._with_arguments(seen)
        holders = {each.process.pid for each in situation(seen).all if each.holds_gil}
        return self._with_native(seen, holders) if holders else seen

    def _with_native(self, seen: HangSnapshot, holders: set[int]) -> HangSnapshot:
        left_s = min(_CALL_TIMEOUT_S, max(0.2, self._deadline_s - time.monotonic()))
        native = {pid: pyspy.native_calls(pid, left_s) for pid in sorted(holders)[:_MOST_NATIVE]}
        ranks = (replace(rank, native=native.get(rank.pid, ())) for rank in seen.ranks)
        return replace(seen, ranks=tuple(ranks))

    def _with_arguments(self, seen: HangSnapshot) -> HangSnapshot:
        dumps = self._dump([rank.pid for rank in seen.ranks], with_locals=True)
        ranks = (replace(rank, arguments=dumps[rank.pid].arguments) for rank in seen.ranks)
        return replace(seen, ranks=tuple(ranks))

    def _memory_kills(self, job: JobMembers, ranks: list[RankProcess]) -> tuple[MemoryKills, ...]:
        workers = [worker for rank in ranks for worker in rank.workers]
        if not job.dead and not any(worker.state == "Z" for worker in workers):
            return ()
        pids = {job.job.agent_pid, *(rank.pid for rank in ranks)}
        return memory_kills(sorted(pids), self._processes)

    def _rank(self, member: Member) -> RankProcess:
        looks = self._looks[member.pid]
        stat = self._processes.stat(member.pid)
        return RankProcess(
            member.rank,
            member.pid,
            stat.state if stat else "X",
            self._processes.wchan(member.pid),
            self._processes.uid(member.pid) or 0,
            tuple(self._source.annotate(thread) for thread in looks[-1].dump.threads),
            looks[-1].dump.refusal,
            _movement(looks),
            _helped(looks),
            on_gpu=self._processes.on_gpu(member.pid),
            unsent=_unsent(looks[-1]),
            started=started_with(member.pid, self._processes),
        )

    def _in_full(
        self,
        rank: RankProcess,
        member: Member,
        in_band: Mapping[int, Answer | None],
    ) -> RankProcess:
        """With what is dear to find out, and told once: its records and its loader's workers."""
        known = member.registration
        if known is not None:
            rank = with_record(rank, known.record)
            told = in_band.get(member.pid)
            rank = replace(rank, in_band=told.pending, calls=told.calls) if told else rank
        if activity.place_of(rank).activity is activity.Activity.LOADER:
            rank = replace(rank, workers=self._workers(rank.pid))
        return rank

    def _in_band(self, job: JobMembers) -> dict[int, Answer | None]:
        """What registered ranks themselves say; one that is stopped could only be waited for."""
        sockets = {}
        for member in job.members:
            stat, uid = self._processes.stat(member.pid), self._processes.uid(member.pid)
            answers = stat is not None and stat.state not in ("T", "t", "Z", "X")
            path = member.registration.socket if member.registration else None
            if answers and path is not None and inband.is_socket_of(path, uid):
                sockets[member.pid] = str(path)
        return inband.ask_all(sockets)

    def _workers(self, pid: int) -> tuple[LoaderWorker, ...]:
        children = [stat for stat in self._processes.all().values() if stat.parent == pid]
        dumps = self._dump([stat.pid for stat in children if stat.state != "Z"])
        workers = []
        for stat in children:
            stack = _worker_stack(dumps.get(stat.pid))
            if stack is not None or stat.state == "Z":
                annotated = self._source.annotate(stack) if stack else None
                workers.append(LoaderWorker(stat.pid, stat.state, annotated))
        return tuple(workers)


def _settled(job: JobMembers, dumps: Mapping[int, Dump]) -> JobMembers | None:
    """The job without candidates that are DataLoader workers or no ranks; None if none is left."""
    members = []
    for member in job.members:
        dump = dumps[member.pid]
        if member.candidate and not _is_spawned_rank(dump):
            continue
        rank = member.rank if member.rank is not None else dump.rank
        members.append(replace(member, rank=rank))
    if not members:
        return None
    members.sort(key=lambda member: (member.rank is None, member.rank or 0, member.pid))
    return replace(job, members=tuple(members), dead=_numbered(job.dead, members))


def _is_spawned_rank(dump: Dump) -> bool:
    files = {frame.file for thread in dump.threads for frame in thread.frames}
    if any(file.endswith("torch/utils/data/_utils/worker.py") for file in files):
        return False
    return any(
        file.endswith("torch/multiprocessing/spawn.py") or "torch/distributed/" in file
        for file in files
    )


def _numbered(dead: tuple[DeadRank, ...], members: list[Member]) -> tuple[DeadRank, ...]:
    """The number of a dead rank, where just one number is missing between the living ones."""
    present = {member.rank for member in members}
    missing = [rank for rank in range(len(members) + len(dead)) if rank not in present]
    if len(dead) == len(missing) == 1 and dead[0].rank is None and None not in present:
        return (replace(dead[0], rank=missing[0]),)
    return dead


def _movement(looks: list[_Seen]) -> Movement:
    before, after = looks[0].counters, looks[-1].counters
    if before is None or after is None:
        return Movement()
    paths = [_path(seen.dump, whole=False) for seen in looks]
    stacks = [_path(seen.dump, whole=True) for seen in looks]
    return Movement(
        looks[-1].at_s - looks[0].at_s,
        after.cpu_s - before.cpu_s,
        _difference(before.io_bytes, after.io_bytes),
        _moved(looks[0].sockets, looks[-1].sockets),
        _difference(before.main_thread_switches, after.main_thread_switches),
        any(path != paths[0] for path in paths),
        any(stack != stacks[0] for stack in stacks),
    )


def _helped(looks: list[_Seen]) -> Movement:
    """What the children that lived through all looks did together; a new one did all it did."""
    cpu_s, io_bytes = 0.0, 0
    for pid, after in looks[-1].helpers.items():
        before = looks[0].helpers.get(pid)
        cpu_s += after.cpu_s - (before.cpu_s if before else 0.0)
        io_bytes += (after.io_bytes or 0) - (before.io_bytes or 0 if before else 0)
    return Movement(looks[-1].at_s - looks[0].at_s, cpu_s, io_bytes)


def _moved(before: dict[int, Traffic] | None, after: dict[int, Traffic] | None) -> int | None:
    """Bytes of the connections that are open; one that is new has moved all of its bytes."""
    if before is None or after is None:
        return None
    none = Traffic(0, 0, "")
    moved = (each.moved - before.get(inode, none).moved for inode, each in after.items())
    return sum(max(0, each) for each in moved)  # a number may be given to another one meanwhile


def _unsent(look: _Seen) -> tuple[Unsent, ...]:
    waits = (each for each in (look.sockets or {}).values() if each.unsent)
    most = sorted(waits, key=lambda each: -each.unsent)[:_MOST_UNSENT]
    return tuple(Unsent(each.peer, each.unsent) for each in most)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _path(dump: Dump, *, whole: bool) -> list[tuple[str, str, int]]:
    """The main thread's calls: all of them, or those of the script."""
    for thread in dump.threads:
        if thread.os_thread_id == dump.pid:
            frames = [frame for frame in thread.frames if whole or frame.is_script]
            return [(frame.file, frame.function, frame.line) for frame in frames]
    return []


def _worker_stack(dump: Dump | None) -> ThreadStack | None:
    """The main thread of a DataLoader worker, down to torch's loop; None for other children.

    One that hangs in `fork` has not come to that loop, and shows the stack of the rank.
    """
    for thread in dump.threads if dump else ():
        if thread.frames and thread.frames[0].file.endswith("multiprocessing/popen_fork.py"):
            return replace(thread, frames=thread.frames[:1])
        for index, frame in enumerate(thread.frames):
            if frame.function == "_worker_loop":
                return replace(thread, frames=thread.frames[: index + 1])
    return None
