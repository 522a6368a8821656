"""A diagnosis as text: the verdict first, then who and where, why it is thought so, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.diagnose import Diagnosis
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.hang import describe_calls
from ddpdoctor.hang.activity import place_of
from ddpdoctor.hang.describe import spot
from ddpdoctor.hang.snapshot import HangSnapshot, RankProcess
from ddpdoctor.hang.standing import Standing
from ddpdoctor.terminal import Columns, said
from ddpdoctor.wording import rank_list

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}


def render(diagnosis: Diagnosis, console: Console, *, stacks: bool = False) -> None:
    """Print the diagnosis of one job; with `stacks` also what every rank is doing."""
    console.print(Group(*_parts(diagnosis, stacks=stacks)), highlight=False)


def _parts(diagnosis: Diagnosis, *, stacks: bool) -> Iterator[RenderableType]:
    report, snapshot, dumped = diagnosis.report, diagnosis.snapshot, diagnosis.dumped
    for result, finding in report.findings:
        yield from _finding(result, finding, snapshot)
    if not report.findings:
        yield Text(_no_finding(diagnosis), style="bold yellow")
    for result in report.results:
        if result.outcome in (Outcome.SKIPPED, Outcome.CRASH):
            yield Padding(
                said(f"skipped: {result.code} {result.name}: {result.reason}"), (0, 0, 0, 2)
            )
    if stacks and snapshot:
        yield Text()
        yield _rank_table(snapshot)
        yield from _stack_groups(snapshot)
        yield from _workers(snapshot)
    if stacks and dumped:
        yield Text()
        yield _call_table(dumped)
    if snapshot:
        yield said(f"job {report.name}, {_counted(snapshot)}", style="dim")
    elif dumped:
        count = len(dumped.dumps.ranks)
        counted = f"dumps of {count} rank{'s' if count != 1 else ''}"
        yield said(f"{counted} of {dumped.dumps.world_size} read in {report.name}", style="dim")
    elif diagnosis.log:
        yield said(f"by the log {report.name}", style="dim")
    else:
        what = "by the notes of launch" if report.subject == "launch" else "by the record of run"
        yield said(f"{what} {report.name}", style="dim")
    for note in report.notes:
        yield said(f"note: {note}", style="dim")


def _no_finding(diagnosis: Diagnosis) -> str:
    if diagnosis.report.subject == "launch":
        return "What the ranks noted of their launch shows nothing that kept them apart."
    if diagnosis.has_verdict:
        return "The record shows no rank that ended early or was waited for in vain."
    return f"No verdict: the cause is not known. {_next(diagnosis)}"


def _next(diagnosis: Diagnosis) -> str:
    """What to try where the evidence ends."""
    snapshot = diagnosis.snapshot
    if snapshot is None:
        return "Add what else the job left: the dumps and logs of all its ranks, by --log, too."
    if any(rank.refusal for rank in snapshot.ranks):
        return "Read the stacks, too (see the notes), and add the job's log by --log."
    if snapshot.elsewhere:
        return (
            "Look on the other hosts of the job, too: `ddpdoctor diagnose -o evidence` there, then "
            "all these files together."
        )
    return (
        "Look again with --watch 10, add the job's log by --log, or start it by `ddpdoctor run`: "
        "then each rank tells which collective it is in."
    )


def _finding(
    result: CheckResult, finding: Finding, snapshot: HangSnapshot | None
) -> Iterator[RenderableType]:
    yield said(finding.message[:1].upper() + finding.message[1:] + ".", style="bold")
    head = said(f"{result.code} {result.name}", style=_STYLES[finding.severity])
    head.append(f"  {finding.severity.label}, {finding.confidence.value}", style="dim")
    yield Padding(head, (0, 0, 0, 2))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for location in finding.where:
        place = f"rank {location.rank}: {location.file}:{location.line} in {location.function}"
        rows.add_row("where", said(place))
        text = _source_line(snapshot, location.file, location.line) if snapshot else None
        if text:
            rows.add_row("", said(f"    {text}", style="cyan"))
    for index, evidence in enumerate(finding.evidence):
        value = evidence.value
        value = f"{value:.1f}" if isinstance(value, float) else value
        shown = f"{evidence.what}: {value} {evidence.unit}".rstrip()
        rows.add_row("" if index else "evidence", said(shown))
    rows.add_row("fix", said(finding.fix))
    yield Padding(rows, (0, 0, 0, 2))


def _source_line(snapshot: HangSnapshot, file: str, line: int) -> str | None:
    """The text of a place, as it was read while looking."""
    for rank in snapshot.ranks:
        stacks = [*rank.threads, *(worker.stack for worker in rank.workers)]
        for stack in stacks:
            for frame in stack.frames if stack else ():
                if (frame.file, frame.line) == (file, line) and frame.text:
                    return frame.text
    return None


def _counted(snapshot: HangSnapshot) -> str:
    if snapshot.launcher is not None:
        return f"its launcher looked at for {snapshot.watched_s:.1f} s on {snapshot.host}"
    count = len(snapshot.ranks)
    looked = f"{count} rank{'s' if count != 1 else ''} looked at for {snapshot.watched_s:.1f} s"
    return f"{looked} on {snapshot.host}"


def _rank_table(snapshot: HangSnapshot) -> Columns:
    rows = [_rank_row(rank) for rank in snapshot.ranks]
    for dead in snapshot.dead:
        number = "?" if dead.rank is None else str(dead.rank)
        rows.append((number, str(dead.pid or "?"), "gone", "", "", ""))
    words = frozenset({"does", "at"})
    names = ("rank", "pid", "state", "CPU", "does", "at")
    return Columns(names, tuple(rows), words, left=frozenset(names))


def _rank_row(rank: RankProcess) -> tuple[str, ...]:
    place = place_of(rank)
    does = place.activity.name.lower() + (f" {place.call}" if place.call else "")
    cpu = f"{rank.movement.cpu_share:.0%}"
    return (_number(rank), str(rank.pid), rank.state, cpu, does, place.text)


def _call_table(dumped: Standing) -> Columns:
    """What each rank is in, and for whom it waits."""
    rows = []
    for rank, calls in sorted(dumped.dumps.by_rank.items()):
        front, awaited = calls.front, sorted(dumped.awaits.get(rank, ()))
        is_in = describe_calls.text(dumped, front) if front else describe_calls.last_call(calls)
        rows.append((str(rank), is_in, rank_list(awaited) if awaited else ""))
    rows += [(str(lost.rank), lost.reason or "no dump", "") for lost in dumped.dumps.lost]
    names = ("rank", "is in", "waits for")
    return Columns(names, tuple(rows), frozenset(names[1:]), left=frozenset(names))


def _stack_groups(snapshot: HangSnapshot) -> Iterator[RenderableType]:
    """Stacks of the main threads, outermost call first; ranks with the same one together."""
    groups: dict[tuple[str, ...], list[RankProcess]] = defaultdict(list)
    for rank in snapshot.ranks:
        frames = rank.main_thread.frames if rank.main_thread else ()
        shown = [frame for frame in reversed(frames) if not frame.file.startswith("<frozen ")]
        groups[tuple(spot(frame) for frame in shown)].append(rank)
    for lines, ranks in groups.items():
        numbers = [rank.rank for rank in ranks if rank.rank is not None]
        yield Text()
        yield Text(rank_list(numbers) if numbers else "rank ?", style="bold")
        for depth, line in enumerate(lines or ("no stack",)):
            yield said("  " + "  " * min(depth, _DEEPEST) + line)


def _workers(snapshot: HangSnapshot) -> Iterator[RenderableType]:
    """Stacks of the processes that make batches, for ranks that wait for one."""
    for rank in snapshot.ranks:
        for worker in rank.workers:
            yield Text()
            title = f"DataLoader worker pid {worker.pid} of rank {_number(rank)}, {worker.state}"
            yield Text(title, style="bold")
            for frame in reversed(worker.stack.frames if worker.stack else ()):
                yield said(f"    {spot(frame)}")


_DEEPEST = 20  # levels of indentation


def _number(rank: RankProcess) -> str:
    return "?" if rank.rank is None else str(rank.rank)
