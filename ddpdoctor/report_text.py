"""A report as text: what costs most, which rank, why, what to do and what that gains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.analysis.model import Analysis, PhaseTimes
from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Evidence, Finding, Location, Severity
from ddpdoctor.report import Report

NOT_MEASURED = "not measured"
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}
_COLUMNS = ("input", "forward", "backward", "wait", "transfer", "optimizer", "between", "step")
_SHOWN_RANKS = 16


def render(report: Report, console: Console, *, short: bool = False) -> None:
    """Print the report: in full, or what rank 0 shows at the end of a run."""
    console.print(Group(*_parts(report, short=short)), soft_wrap=False, highlight=False)


def _parts(report: Report, *, short: bool) -> Iterator[RenderableType]:
    analysis = report.analysis
    if analysis is not None:
        yield Text(_headline(analysis), style="bold")
        if not short:
            yield Text()
            yield _time_table(analysis)
        yield Text(_where_a_step_goes(analysis))
    findings = report.findings
    shown = findings[:1] if short else findings
    for result, finding in shown:
        yield Text()
        yield from _finding(result, finding, short=short)
    yield Text()
    yield from _closing(report, hidden=len(findings) - len(shown), short=short)


def _headline(analysis: Analysis) -> str:
    info = analysis.run.info
    steps = analysis.steps
    hosts = len({stats.host for stats in analysis.ranks})
    left_out = f" (the first {steps.warmup} left out as warm-up)" if steps.warmup else ""
    return (
        f"ddpdoctor · run {info.run_id} · {info.world_size} ranks on {hosts} "
        f"host{'s' if hosts > 1 else ''} · {info.backend} · {steps.counted} steps counted{left_out}"
    )


def _where_a_step_goes(analysis: Analysis) -> str:
    if not analysis.steps.counted:
        return "No whole step was recorded on all ranks."
    count = len(analysis.ranks)
    total = analysis.step_ms
    parts = []
    for name in _COLUMNS[:-1]:
        values = [_milliseconds(stats.times, name) for stats in analysis.ranks]
        known = [value for value in values if value is not None]
        if known and sum(known) / count >= 0.005 * total:
            parts.append(f"{name} {sum(known) / count:.1f}")
    cost = analysis.cost_ms_per_step
    own = f"; recording took {cost:.2f} ms of it" if cost is not None else ""
    return f"A step takes {total:.1f} ms on average over the ranks: {', '.join(parts)} ms{own}."


def _time_table(analysis: Analysis) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms a step")
    table.add_column("host")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    table.add_column("overlapped", justify="right", style="dim")
    for stats in analysis.ranks[:_SHOWN_RANKS]:
        cells = [_number(_milliseconds(stats.times, name)) for name in _COLUMNS]
        table.add_row(f"rank {stats.rank}", stats.host, *cells, _number(stats.times.overlapped_ms))
    if len(analysis.ranks) > _SHOWN_RANKS:
        table.add_row(f"… {len(analysis.ranks) - _SHOWN_RANKS} more ranks")
    return table


def _milliseconds(times: PhaseTimes, name: str) -> float | None:
    value: float | None = getattr(times, f"{name}_ms")
    return value


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f}"


def _finding(result: CheckResult, finding: Finding, *, short: bool) -> Iterator[RenderableType]:
    head = Text()
    head.append(f"{result.code} {result.name}", style=_STYLES[finding.severity])
    lost = f", {finding.lost_s:.1f} s lost" if finding.lost_s is not None else ""
    head.append(f"  {finding.severity.label}, {finding.confidence.value}{lost}", style="dim")
    yield head
    yield Padding(Text(finding.message), (0, 0, 0, 2))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for location in finding.where:
        rows.add_row("where", _place(location))
    if not short:
        for index, evidence in enumerate(finding.evidence):
            rows.add_row("" if index else "evidence", _evidence(evidence))
    rows.add_row("fix", Text(finding.fix))
    yield Padding(rows, (0, 0, 0, 2))


def _place(location: Location) -> Text:
    file = Path(location.file)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return Text(f"rank {location.rank}: {shown}:{location.line} in {location.function}")


def _evidence(evidence: Evidence) -> Text:
    value = evidence.value
    if value is None:
        said = NOT_MEASURED
    elif isinstance(value, str):
        said = value
    else:
        said = f"{value:,.1f}" if isinstance(value, float) and value >= 0.1 else f"{value:.4g}"
    threshold = (
        f" (threshold {evidence.threshold:g})"
        if isinstance(evidence.threshold, (int, float))
        else ""
    )
    return Text(f"{evidence.what}: {said} {evidence.unit}".rstrip() + threshold)


def _closing(report: Report, *, hidden: int, short: bool) -> Iterator[RenderableType]:
    if not report.findings:
        clean = sum(result.outcome is Outcome.CLEAN for result in report.results)
        yield Text(f"{clean} checks looked and found nothing.", style="green" if clean else "")
    for note in report.notes:
        yield Text(f"note: {note}", style="dim")
    if short:
        more = f"{hidden} more finding{'s' if hidden > 1 else ''}; " if hidden > 0 else ""
        yield Text(f"{more}all of it: ddpdoctor report {_run_path(report)}", style="dim")
        return
    clean_codes = [f"{r.code} {r.name}" for r in report.results if r.outcome is Outcome.CLEAN]
    if clean_codes and report.findings:
        yield Text(f"clean: {', '.join(clean_codes)}", style="dim")
    for result in report.results:
        if result.outcome in (Outcome.SKIPPED, Outcome.CRASH):
            said = "skipped" if result.outcome is Outcome.SKIPPED else "crashed"
            yield Text(f"{said}: {result.code} {result.name}: {result.reason}", style="dim")


def _run_path(report: Report) -> str:
    if report.analysis is None:
        return ""
    path = report.analysis.run.path
    run = path.parent if path.name.startswith("attempt-") else path
    relative = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    return str(relative)
