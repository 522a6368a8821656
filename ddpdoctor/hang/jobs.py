"""Which processes of this host are ranks, and of which job.

Three signs, the surest first: a registration by the recorder, the environment that torchrun sets,
and for `torch.multiprocessing` children of one parent that have torch loaded. The last kind is only
a candidate: its stack must show that it is no DataLoader worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddpdoctor.hang.processes import Processes, Stat
from ddpdoctor.hang.registrations import Registration, folders_of, read_registrations
from ddpdoctor.hang.snapshot import DeadRank, Job

_SPAWNED: Final = "--multiprocessing-fork"
_STARTED_TOGETHER_TICKS: Final = 1000  # 10 s: other children of the launcher are no ranks


@dataclass(frozen=True)
class Member:
    """A living process that is a rank, or may be one where `candidate` says so."""

    pid: int
    rank: int | None
    parent: int
    registration: Registration | None = None
    candidate: bool = False


@dataclass(frozen=True)
class JobMembers:
    """The processes of one job on this host."""

    job: Job
    members: tuple[Member, ...]
    dead: tuple[DeadRank, ...] = ()


@dataclass(frozen=True)
class _Launched:
    """A process with torchrun's variables; a child of a rank inherits them."""

    stat: Stat
    rank: int
    local_world_size: int | None
    world_size: int
    master: str
    run_id: str

    @property
    def job(self) -> tuple[str, str]:
        return self.master, self.run_id


def find_jobs(processes: Processes, leave_out: Iterable[int] = ()) -> list[JobMembers]:
    """The jobs on this host. `leave_out` are pids that cannot be ranks, such as our own."""
    stats = processes.all()
    for pid in leave_out:
        stats.pop(pid, None)
    alive = {pid: stat for pid, stat in stats.items() if stat.state not in ("Z", "X")}
    identities = {pid: processes.identity(pid) or {} for pid in alive}
    launched = _launched(processes, alive, identities)
    jobs = _launched_jobs(launched, stats)
    spawned = _spawned_jobs(processes, alive, stats, {launch.stat.pid for launch in launched})
    registered = _registrations(processes, identities)
    return _with_registrations(jobs + spawned, registered, stats)


def _launched(
    processes: Processes, alive: Mapping[int, Stat], identities: Mapping[int, dict[str, str]]
) -> list[_Launched]:
    found = {
        pid: launch
        for pid, identity in identities.items()
        if (launch := _from_environment(alive[pid], identity)) is not None
    }
    has_torch = {pid: processes.has_torch(pid) for pid in found}
    return [launch for pid, launch in found.items() if _is_rank(pid, found, has_torch)]


def _from_environment(stat: Stat, identity: Mapping[str, str]) -> _Launched | None:
    try:
        rank, world_size = int(identity["RANK"]), int(identity["WORLD_SIZE"])
        master = f"{identity['MASTER_ADDR']}:{identity['MASTER_PORT']}"
    except (KeyError, ValueError):
        return None
    local = identity.get("LOCAL_WORLD_SIZE", "")
    local_world_size = int(local) if local.isdecimal() else None
    run_id = identity.get("TORCHELASTIC_RUN_ID", "")
    return _Launched(stat, rank, local_world_size, world_size, master, run_id)


def _is_rank(pid: int, found: Mapping[int, _Launched], has_torch: Mapping[int, bool]) -> bool:
    """Of a chain of parents and children with one rank's variables: the topmost with torch.

    A shell script may stand between torchrun and Python, and DataLoader workers are below it.
    """
    own = found[pid]
    above = found.get(own.stat.parent)
    while above is not None and above.job == own.job and above.rank == own.rank:
        if has_torch[above.stat.pid]:
            return False
        above = found.get(above.stat.parent)
    if has_torch[pid]:
        return True
    same = [other for other in found.values() if (other.job, other.rank) == (own.job, own.rank)]
    if any(has_torch[other.stat.pid] for other in same):
        return False
    return own.stat.pid == min(same, key=lambda other: other.stat.start_ticks).stat.pid


def _launched_jobs(launched: list[_Launched], stats: Mapping[int, Stat]) -> list[JobMembers]:
    by_job: dict[tuple[str, str], list[_Launched]] = defaultdict(list)
    for launch in launched:
        by_job[launch.job].append(launch)
    apart = [ranks for each in by_job.values() for ranks in _apart_where_ranks_collide(each)]
    return [_job_of(ranks, stats) for ranks in _that_should_meet(apart)]


def _that_should_meet(jobs: list[list[_Launched]]) -> list[list[_Launched]]:
    """Parts of one job whose ranks name different places to meet at, put together.

    One parent started them, each part is incomplete, and their ranks complete one another.
    """
    found: list[list[_Launched]] = []
    for part in jobs:
        for other in found:
            if _complete_one_another(part, other):
                other.extend(part)
                break
        else:
            found.append(list(part))
    return found


def _complete_one_another(one: list[_Launched], other: list[_Launched]) -> bool:
    def of(part: list[_Launched]) -> set[tuple[int, int, str]]:
        return {(each.stat.parent, each.world_size, each.run_id) for each in part}

    ranks = {each.rank for each in one} | {each.rank for each in other}
    sizes = {each.world_size for each in (*one, *other)}
    starts = [each.stat.start_ticks for each in (*one, *other)]
    return (
        len(of(one) | of(other)) == 1
        and len(ranks) == len(one) + len(other) <= min(sizes)
        and max(starts) - min(starts) < _STARTED_TOGETHER_TICKS
    )


def _apart_where_ranks_collide(together: list[_Launched]) -> list[list[_Launched]]:
    """One job may have several launchers here; two jobs in containers may share one address."""
    if len({launch.rank for launch in together}) == len(together):
        return [together]
    by_parent: dict[int, list[_Launched]] = defaultdict(list)
    for launch in together:
        by_parent[launch.stat.parent].append(launch)
    return list(by_parent.values())


def _job_of(ranks: list[_Launched], stats: Mapping[int, Stat]) -> JobMembers:
    first = min(ranks, key=lambda launch: launch.rank)
    members = [Member(launch.stat.pid, launch.rank, launch.stat.parent) for launch in ranks]
    masters = {launch.rank: launch.master for launch in ranks}
    apart = tuple(sorted(masters.items())) if len(set(masters.values())) > 1 else ()
    job = Job(first.master, first.run_id, first.stat.parent, first.world_size, apart)
    return JobMembers(
        job,
        tuple(sorted(members, key=lambda member: (member.rank or 0, member.pid))),
        _dead_of(ranks, stats),
    )


def _dead_of(ranks: list[_Launched], stats: Mapping[int, Stat]) -> tuple[DeadRank, ...]:
    """Ranks that their launcher should have here and has not; torchrun numbers them in a row."""
    dead: list[DeadRank] = []
    for agent in sorted({launch.stat.parent for launch in ranks}):
        here = [launch for launch in ranks if launch.stat.parent == agent]
        count = here[0].local_world_size
        if count is None:
            dead += _unnumbered(here, stats)
            continue
        if count <= len(here):
            continue
        first = min(launch.rank for launch in here) // count * count
        present = {launch.rank for launch in here}
        missing = [rank for rank in range(first, first + count) if rank not in present]
        dead += _with_zombies(missing, _zombies_of(agent, stats))
    return tuple(dead)


def _unnumbered(here: list[_Launched], stats: Mapping[int, Stat]) -> list[DeadRank]:
    """Children of a launcher that tells no count, which ended and were started with the others.

    One that ended well was no rank, as far as is known: it may have been a step of a script.
    """
    starts = [launch.stat.start_ticks for launch in here]
    missing = sorted(set(range(min(here[0].world_size, 4096))) - {each.rank for each in here})
    zombies = [
        zombie
        for zombie in _zombies_of(here[0].stat.parent, stats)
        if zombie.exit_code
        and min(starts) - _STARTED_TOGETHER_TICKS < zombie.start_ticks
        and zombie.start_ticks < max(starts) + _STARTED_TOGETHER_TICKS
    ]
    if not zombies or len(zombies) > len(missing):
        return []
    if len(zombies) == len(missing):
        return _with_zombies(missing, zombies)
    return [_dead(None, zombie) for zombie in zombies]


def _zombies_of(parent: int, stats: Mapping[int, Stat]) -> list[Stat]:
    return [stat for stat in stats.values() if stat.parent == parent and stat.state == "Z"]


def _with_zombies(missing: list[int], zombies: list[Stat]) -> list[DeadRank]:
    """Launchers start ranks in order, so that pids in order go with ranks in order."""
    zombies = sorted(zombies, key=lambda stat: (stat.start_ticks, stat.pid))
    if len(zombies) != len(missing):
        return [DeadRank(rank) for rank in missing]
    return [_dead(rank, zombie) for rank, zombie in zip(missing, zombies, strict=True)]


def _dead(rank: int | None, zombie: Stat) -> DeadRank:
    code = zombie.exit_code
    return DeadRank(rank, zombie.pid, signal=code & 0x7F or None, exit_status=code >> 8)


def _spawned_jobs(
    processes: Processes, alive: Mapping[int, Stat], stats: Mapping[int, Stat], launched: set[int]
) -> list[JobMembers]:
    by_parent: dict[int, list[Stat]] = defaultdict(list)
    for pid, stat in alive.items():
        if _SPAWNED in processes.command(pid) and processes.has_torch(pid):
            by_parent[stat.parent].append(stat)
    all_spawned = {stat.pid for children in by_parent.values() for stat in children}
    jobs = []
    for parent, children in sorted(by_parent.items()):
        if parent in launched or parent in all_spawned:  # workers of a rank
            continue
        children.sort(key=lambda stat: (stat.start_ticks, stat.pid))
        members = tuple(Member(stat.pid, None, parent, candidate=True) for stat in children)
        dead = tuple(
            _dead(None, zombie)
            for zombie in _zombies_of(parent, stats)
            if abs(zombie.start_ticks - children[0].start_ticks) < _STARTED_TOGETHER_TICKS
        )
        jobs.append(JobMembers(Job("", "", parent, None), members, dead))
    return jobs


def _registrations(
    processes: Processes, identities: Mapping[int, dict[str, str]]
) -> list[Registration]:
    places = {
        (uid, identity.get("XDG_RUNTIME_DIR"), identity.get("TMPDIR"))
        for pid, identity in identities.items()
        if identity and (uid := processes.uid(pid)) is not None
    }
    folders = {folder for place in places for folder in folders_of(*place)}
    return [found for folder in sorted(folders) for found in read_registrations(folder)]


def _with_registrations(
    jobs: list[JobMembers], registered: list[Registration], stats: Mapping[int, Stat]
) -> list[JobMembers]:
    """Ranks, world sizes and deaths that registrations tell, and jobs that only they know."""
    living: dict[int, Registration] = {}
    gone: dict[str, list[Registration]] = defaultdict(list)
    for known in registered:
        stat = stats.get(known.pid)
        is_it = stat is not None and stat.start_ticks == known.start_ticks
        if is_it and stat is not None and stat.state not in ("Z", "X"):
            living[known.pid] = known
        else:
            gone[known.run_folder].append(known)
    known_pids = {member.pid for job in jobs for member in job.members}
    jobs = jobs + _registered_only(living, known_pids, stats)
    return [_informed(job, living, gone) for job in jobs]


def _registered_only(
    living: Mapping[int, Registration], known_pids: set[int], stats: Mapping[int, Stat]
) -> list[JobMembers]:
    by_run: dict[str, list[Registration]] = defaultdict(list)
    for pid, registration in living.items():
        if pid not in known_pids:
            by_run[registration.run_folder].append(registration)
    jobs = []
    for run_folder, ranks in sorted(by_run.items()):
        members = tuple(Member(each.pid, each.rank, stats[each.pid].parent) for each in ranks)
        run_id = run_folder.rsplit("/", 2)[-2] if run_folder.count("/") > 1 else run_folder
        jobs.append(JobMembers(Job("", run_id, members[0].parent, ranks[0].world_size), members))
    return jobs


def _informed(
    job: JobMembers, living: Mapping[int, Registration], gone: Mapping[str, list[Registration]]
) -> JobMembers:
    members = tuple(_registered(member, living.get(member.pid)) for member in job.members)
    known = [member.registration for member in members if member.registration is not None]
    if not known:
        return job
    present = {member.rank for member in members}
    named = {dead.rank for dead in job.dead}
    dead = [dead for dead in job.dead if dead.rank is not None]
    dead += [
        DeadRank(each.rank, each.pid)
        for each in gone.get(known[0].run_folder, ())
        if each.rank not in present | named
    ]
    details = replace(job.job, world_size=known[0].world_size)
    return JobMembers(details, members, tuple(dead))


def _registered(member: Member, registration: Registration | None) -> Member:
    if registration is None:
        return member
    return replace(member, rank=registration.rank, registration=registration, candidate=False)
