"""DD901 rank-dead: a rank ended while the others still needed it.

What it measures
    In a job that hangs: the launcher's children and their environment, and the registrations of
    recorded ranks: which rank should run on this host and does not, with which signal or status
    it ended, what torchrun's error file says, and kills for memory in the control group. In a
    record: how each rank noted its end, which of them was the first that is no consequence of
    another's, and who noted none; where nobody did, whom a rank that stood still saw to be gone.
    Among dumps of torch's flight recorder: for which rank without a dump the others wait. In a log:
    how each rank ended, and whose end is none of the ways in which torch, gloo and NCCL say that a
    peer is gone.

Why it matters
    The survivors report timeouts or closed connections, and never why: the rank that went first
    is the cause, and its last words are further up in the log.

What to do
    SIGHUP: start the job in tmux, or by setsid; nohup is undone by torchrun.
    Signal 9 is mostly the kernel running out of memory: look at `dmesg` and at `oom_kill` in the
    cgroup's memory.events. Otherwise read that rank's own log. A rank that ended well did fewer
    steps than the others: see DD902. In a record the line that raised is named.

When it is wrong
    A launcher that already took note of the end leaves only the gap in the numbers; then the
    signal is not known. Ranks that end one after another at the end of a job are no fault: while
    the others make progress, a rank that ended without an error is not reported. In a record an
    error that the script raises since another rank failed, in words of its own, looks like a
    cause; the first by time is named. A rank without a word may also have called `os._exit`. A dump
    may be missing since it lies on another host, or since the rank was killed before writing it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from ddpdoctor.checks import NotEnoughData, dump_check, hang_check, log_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.hang import describe, describe_calls, describe_log
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.joblog import Failure, JobLog
from ddpdoctor.hang.situation import Kind, Situation, numbers, situation
from ddpdoctor.hang.snapshot import DeadRank, HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis, EarlyEnd

MOST_NOTED = 10  # lines on how ranks ended; a thousand ranks say the same

_FILE_ERRORS: Final = frozenset(
    {"FileNotFoundError", "FileExistsError", "EOFError", "JSONDecodeError", "BadZipFile"}
)
_HALF_A_FILE: Final = re.compile(  # as torch.load, pickle and numpy say it
    r"PytorchStreamReader|unexpected EOF|[Rr]an out of input|pickle data was truncated|"
    r"file is too small|No data left in file"
)
_READS_A_FILE: Final = re.compile(  # functions that words of their own tell nothing of
    r"^(torch\.serialization|numpy\.lib|safetensors|zipfile|tarfile|json|pickle|h5py|pandas\.io)\b"
    r".*(load|open|read)"
)


@hang_check("DD901", "rank-dead")
def rank_dead(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.RANK_DEAD:
        return
    failed = [dead for dead in snapshot.dead if dead.failed]
    culprits = failed or list(snapshot.dead)
    known = all(dead.rank is not None for dead in culprits)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if failed and known else Confidence.LIKELY,
        message=_message(snapshot, culprits),
        fix=_fix_while_it_hangs(snapshot, scene, culprits[0]),
        culprits=tuple(sorted(dead.rank for dead in culprits if dead.rank is not None)),
        victims=numbers(scene.all),
        hosts=describe.hosts(snapshot),
        evidence=(
            *(_evidence(dead) for dead in snapshot.dead),
            *describe.memory_kills(snapshot),
            *describe.states(scene.all),
        ),
        where=tuple(
            Location(dead.rank, dead.site.file, dead.site.line, dead.site.function)
            for dead in culprits
            if dead.rank is not None and dead.site is not None
        ),
    )


def _fix_while_it_hangs(snapshot: HangSnapshot, scene: Situation, dead: DeadRank) -> str:
    pids = " ".join(str(rank.pid) for rank in snapshot.ranks[:16])
    left = f" Those that ignore SIGTERM go by `kill -9 {pids}`." if pids else ""
    silent = dead.signal in (None, signal.SIGKILL) and not dead.said and not dead.exit_status
    if silent and snapshot.memory_kills:
        return f"{describe_log.MORE_MEMORY}{left}"
    joins = scene.waiting and all(seen.place.activity is Activity.JOINING for seen in scene.waiting)
    if joins and dead.exit_status:
        return (
            f"{_fix(dead)} If these say that the address is in use, another process holds the port "
            f"at which the ranks meet: `ss -ltnp`, and take another port.{left}"
        )
    return _fix(dead) + left


def _message(snapshot: HangSnapshot, culprits: list[DeadRank]) -> str:
    scene = situation(snapshot)
    ranks = sorted(dead.rank for dead in culprits if dead.rank is not None)
    who = rank_list(ranks) if len(ranks) == len(culprits) else f"{len(culprits)} of the ranks"
    ended = f"{who} {'is' if len(culprits) == 1 else 'are'} dead: {_end(culprits[0])}"
    if culprits[0].signal == signal.SIGKILL and snapshot.memory_kills:
        ended += ", most likely since memory ran out"
    if not scene.all:
        return ended
    survivors = describe.names(scene.all)
    waits = describe.verb(scene.all, "is", "are")
    if scene.waiting:
        return f"{ended}; {survivors} {waits} left, in {describe.calls(scene.waiting)}"
    return f"{ended}; {survivors} {waits} left"


def _end(dead: DeadRank) -> str:
    if dead.said:
        return f"ended with {dead.said}"
    if dead.signal:
        return f"ended by {describe_log.signal_name(dead.signal)}"
    if dead.exit_status:
        return f"ended with exit status {dead.exit_status}"
    return "no such process runs any more"


def _evidence(dead: DeadRank) -> Evidence:
    who = "rank ?" if dead.rank is None else f"rank {dead.rank}"
    pid = f"pid {dead.pid}, " if dead.pid else ""
    return Evidence(who, pid + _end(dead))


@trace_check("DD901", "rank-dead")
def rank_dead_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record: by how each rank noted its end, or noted none.

    A rank that left since it had no batch left is DD304's.
    """
    from ddpdoctor.analysis.uneven import out_of_batches
    from ddpdoctor.lastlook import last_look

    seen = last_look(run.run) if run.early_end is None else None
    if seen is not None and seen.dead:
        yield _seen_to_be_gone(seen)
        return
    if not any(t.end or t.last_stacks.by_signal for t in run.run.ranks):
        raise NotEnoughData("no rank noted how it ended")
    early = run.early_end
    if early is None:
        return
    if early.cause == "left" and out_of_batches(run).issuperset(early.culprits):
        return
    if early.cause == "hangup":
        yield _hung_up(early)
        return
    site = early.end.site if early.end else None
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if early.cause == "error" else Confidence.LIKELY,
        message=_ended_early(early),
        fix=_mend(early),
        culprits=early.culprits,
        victims=early.victims,
        evidence=tuple(islice(_noted(run, early), MOST_NOTED)),
        where=tuple(
            Location(rank, site.file, site.line, site.function) for rank in early.culprits if site
        ),
    )


def _seen_to_be_gone(seen: HangSnapshot) -> Finding:
    """By another rank of the host, which stood still and looked around."""
    scene, dead = situation(seen), seen.dead[0]
    killed = dead.signal in (None, signal.SIGKILL) and not dead.exit_status
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=_message(seen, list(seen.dead)),
        fix=describe_log.MORE_MEMORY if killed and seen.memory_kills else _silent(dead),
        culprits=tuple(each.rank for each in seen.dead if each.rank is not None),
        victims=numbers(scene.all),
        hosts=describe.hosts(seen),
        evidence=(
            *(_evidence(each) for each in seen.dead),
            *describe.memory_kills(seen),
            Evidence("the others stood still for", seen.watched_s, "s"),
        ),
    )


def _silent(dead: DeadRank) -> str:
    """Advice on a rank that went without a word."""
    if dead.failed:
        return _fix(dead)
    return (
        f"{_fix(replace(dead, signal=signal.SIGKILL))} That is where the "
        "launcher tells the exit code -9; at -6 or -11 native code aborted or crashed: read "
        "what the rank wrote last (gloo aborts where ranks make different calls)."
    )


def _hung_up(early: EarlyEnd) -> Finding:
    who = rank_list(early.culprits)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"SIGHUP ended {who} in step {early.step + 1}: the terminal or session in which the "
            "job was started is gone"
        ),
        fix=(
            "Start the job where it outlives the terminal: in tmux or screen, by setsid, or by the "
            "cluster's scheduler. nohup does not help: torchrun handles SIGHUP itself, and passes "
            "it on to the ranks."
        ),
        victims=tuple(sorted({*early.culprits, *early.victims})),
        evidence=(Evidence(f"rank {early.culprits[0]} recorded last", early.last),),
    )


def _ended_early(early: EarlyEnd) -> str:
    who, end = rank_list(early.culprits), early.end
    if early.cause == "silence":
        did = f"went without a word in step {early.step + 1}"
    elif early.cause == "left":
        did = f"came to the end of the script after step {early.step}"
    elif end and end.kind == "exception":
        at = f" at {end.site.file.rsplit('/', 1)[-1]}:{end.site.line}" if end.site else ""
        did = f"ended with {end.error}{at} in step {early.step + 1}"
    else:
        did = f"ended with sys.exit({end.status if end else '?'}) in step {early.step + 1}"
    if not early.victims:
        return f"{who} {did}"
    then = "while {} still needed it" if early.cause == "left" else "and {} failed for it"
    return f"{who} {did}, {then.format(rank_list(early.victims))}"


def _noted(run: Analysis, early: EarlyEnd) -> Iterator[Evidence]:
    yield Evidence(f"rank {early.culprits[0]} recorded last", early.last)
    for trace in sorted(run.run.ranks, key=lambda t: t.info.rank not in early.culprits):
        end = trace.end
        if end is not None and end.failed:
            what = f"{end.error}: {end.message}" if end.error else f"sys.exit({end.status})"
            yield Evidence(f"rank {trace.info.rank}", what)
        elif trace.last_stacks.by_signal:
            hung_up = trace.last_stacks.at_sighup is not None
            yield Evidence(f"rank {trace.info.rank}", "SIGHUP" if hung_up else "SIGTERM")


def _mend(early: EarlyEnd) -> str:
    if early.cause == "error":
        others = " What the others say follows from it." if early.victims else ""
        return (
            f"Mend this error on {rank_list(early.culprits)}; it came first.{others}{_files(early)}"
        )
    if early.cause == "silence":
        return _silent(DeadRank(early.culprits[0]))
    return _fix(DeadRank(early.culprits[0]))


def _files(early: EarlyEnd) -> str:
    """Advice where a file that ranks share was not there, or not whole, for some of them."""
    end = early.end
    if end is None or not (
        end.error in _FILE_ERRORS
        or _HALF_A_FILE.search(end.message)
        or _READS_A_FILE.search(end.called)
    ):
        return ""
    return (
        " If another rank makes that file or folder, let one rank alone write it and all wait for "
        "it: torch.distributed.barrier() between writing and reading; make folders by "
        "os.makedirs(..., exist_ok=True)."
    )


def _fix(dead: DeadRank) -> str:
    stop = "Stop the job; the survivors cannot go on without it."
    if dead.signal == signal.SIGKILL:
        return (
            "Look for the out-of-memory killer: `dmesg | grep -i oom`, and oom_kill in the "
            f"cgroup's memory.events; fewer DataLoader workers or smaller batches need less. {stop}"
        )
    if dead.said:
        return f"Mend this error; it came first. {stop}"
    if dead.failed:
        return f"Read the last lines that this rank wrote before it ended. {stop}"
    return (
        "Read this rank's own log. If it ended well, it did fewer steps than the others: give all "
        f"ranks equally many batches (drop_last=True, or `with Join([model]):`). {stop}"
    )


@dump_check("DD901", "rank-dead")
def rank_dead_by_dumps(scene: Standing) -> Iterator[Finding]:
    """A rank that left no readable dump, while others wait for it."""
    gone, dumps = scene.gone_or_unread, scene.dumps
    if not gone or scene.is_explained:
        return
    if 2 * len(dumps.lost) > dumps.world_size:
        raise NotEnoughData(
            f"only {len(dumps.ranks)} of {dumps.world_size} ranks left a dump, and they wait for "
            f"{rank_list(gone)}: add the dumps of the others, which may lie on other hosts"
        )
    waiting = describe_calls.direct_victims(scene, gone)
    sure = not scene.absent and not scene.stuck and 2 * len(dumps.lost) < dumps.world_size
    yield describe_calls.finding(
        scene,
        gone,
        f"{rank_list(gone)} left no dump that can be read, and {rank_list(waiting)} "
        f"{'waits' if len(waiting) == 1 else 'wait'} for {'them' if len(gone) > 1 else 'it'} in "
        f"{describe_calls.calls_of(scene, waiting)}",
        f"Look for the end of {rank_list(gone)} in the logs and in `dmesg`: a rank that was killed "
        "writes no dump. If it lies on another host, add it.",
        Confidence.LIKELY if sure else Confidence.POSSIBLE,
    )


@log_check("DD901", "rank-dead")
def rank_dead_by_log(log: JobLog) -> Iterator[Finding]:
    """The first end, by a log, that follows from no other rank's."""
    if log.taken_port is not None:
        return  # DD408: the ranks never met
    first = log.first
    if log.own_unnamed and not (first and first[0].has_cause):
        yield _unnamed(log, log.own_unnamed[0])
    elif log.beside:
        yield _not_in_order(log, [first[0], *log.beside])
    elif first:
        culprits = tuple(each.rank for each in first)
        others = log.victims
        then = f"; the errors of {rank_list(others)} follow from it" if others else ""
        sure = first[0].is_root or bool(others) or len(first) == len(log.failures)
        yield describe_log.finding(
            log,
            culprits,
            f"{rank_list(culprits)} {describe_log.end_of(first[0])}, before any other rank "
            f"failed{then}",
            describe_log.fix_of(first[0], log),
            Confidence.LIKELY if sure else Confidence.POSSIBLE,
        )
    elif log.hung_up:
        yield describe_log.finding(
            log, (), "the launcher got SIGHUP and ended all ranks: its terminal was closed",
            "Start it where closing the terminal does not end it: in tmux, or by `setsid "
            "torchrun ...`. nohup alone does not help, since torchrun handles SIGHUP itself.",
            Confidence.LIKELY,
        )  # fmt: skip
    elif log.killed_for_memory:
        yield describe_log.finding(
            log, (), "a process of the job was killed since memory ran out",
            describe_log.MORE_MEMORY, Confidence.LIKELY,
        )  # fmt: skip


def _unnamed(log: JobLog, first: Failure) -> Finding:
    seen = [each.rank for each in log.first if each.is_root]
    launcher = f", and the launcher saw {rank_list(seen)} end first" if seen else ""
    finding = describe_log.finding(
        log, (),
        f"a rank {describe_log.end_of(first)}, the first error of its own in the log; of which "
        f"rank it does not tell{launcher}",
        f"{describe_log.fix_of(first, log)} To know the rank: `torchrun --log-dir DIR "
        "--redirects 3`, `srun --label`, or log the rank with each line.",
        Confidence.LIKELY if len(log.own_unnamed) == 1 else Confidence.POSSIBLE,
    )  # fmt: skip
    said = Evidence("its last line", f"{first.error}: {first.message}".removesuffix(": "))
    return replace(finding, evidence=(said, *finding.evidence))


def _not_in_order(log: JobLog, first: list[Failure]) -> Finding:
    culprits = sorted(each.rank for each in first)
    ends = "; ".join(f"rank {each.rank} {describe_log.end_of(each)}" for each in first[:3])
    return describe_log.finding(
        log, culprits,
        f"{rank_list(culprits)} ended with errors of their own, and which came first the logs do "
        f"not tell: {ends}",
        "Look at the times of these errors: the earliest is to be mended first. torchrun's own "
        "output names the rank that it saw fail first.",
        Confidence.POSSIBLE,
    )  # fmt: skip
