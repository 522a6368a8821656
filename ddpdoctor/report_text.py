"""A report as text: what costs most, which rank, why, what to do and what that gains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.analysis.model import Analysis, PhaseTimes, RankStats
from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Evidence, Finding, Location, Severity
from ddpdoctor.parts_text import material_parts, named_spans
from ddpdoctor.report import Report
from ddpdoctor.terminal import Columns, said
from ddpdoctor.wording import percent, rank_list

NOT_MEASURED = "not measured"
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold blue"}
_SPLIT = ("input", "forward", "backward", "wait", "transfer", "optimizer", "between", "step")
_UNSPLIT = ("input", "forward", "backward", "blocked", "optimizer", "between", "step")
_TITLES = {"blocked": "in collectives"}
_SHOWN_RANKS = 16


def render(report: Report, console: Console, *, short: bool = False) -> None:
    """Print the report: in full, or what rank 0 shows at the end of a run."""
    console.print(Group(*_parts(report, short=short)), soft_wrap=False, highlight=False)


def _parts(report: Report, *, short: bool) -> Iterator[RenderableType]:
    analysis = report.analysis
    if analysis is not None:
        yield said(_headline(analysis), style="bold")
        if not short:
            yield Text()
            yield from _time_table(analysis)
        yield Text(_where_a_step_goes(analysis))
        if not short:
            yield from _efficiency(analysis)
            yield from material_parts(analysis)
            yield from named_spans(analysis)
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
        f"ddpdoctor · run {info.run_id} · {_counted(info.world_size, 'rank')} on "
        f"{_counted(hosts, 'host')} · {info.backend} · "
        f"{_counted(steps.counted, 'step')} counted{left_out}"
    )


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def _is_split(analysis: Analysis) -> bool:
    """Whether waiting and transfer are told apart."""
    return analysis.tables.clock.comparable


def _where_a_step_goes(analysis: Analysis) -> str:
    total, times = analysis.step_ms, analysis.times
    if total is None:
        return "No whole step was recorded on all ranks."
    parts = []
    for name in (_SPLIT if _is_split(analysis) else _UNSPLIT)[:-1]:
        known = [value for each in times if (value := _milliseconds(each, name)) is not None]
        if known and sum(known) / len(times) >= 0.005 * total:
            parts.append(f"{_TITLES.get(name, name)} {sum(known) / len(times):.1f}")
    cost = analysis.cost_ms_per_step
    own = f"; recording took {cost:.2f} ms of it" if cost is not None else ""
    return f"A step takes {total:.1f} ms on average over the ranks: {', '.join(parts)} ms{own}."


def _efficiency(analysis: Analysis) -> Iterator[RenderableType]:
    """The POP factors; nothing where waiting and transfer are not told apart."""
    found = analysis.efficiency
    if found is not None:
        yield Text(
            f"Efficiency {percent(found.total)}: {percent(found.useful)} of own time trains "
            f"× balance of the ranks {percent(found.balance)} × ranks late in turn "
            f"{percent(found.turns)} × transfer {percent(found.transfer)}."
        )


def _time_table(analysis: Analysis) -> Iterator[RenderableType]:
    split = _is_split(analysis)
    names = (*_SPLIT, "overlapped") if split else _UNSPLIT
    measured = [stats for stats in analysis.ranks if stats.times is not None]
    rows = tuple(_row(stats, names) for stats in measured[:_SHOWN_RANKS])
    if rows:
        titles = ("ms a step", "host", *(_TITLES.get(name, name) for name in names))
        yield Columns(titles, rows, words=frozenset({"host"}), left=frozenset({"ms a step"}))
        if not split:
            yield Text(f"wait, transfer, overlapped: {NOT_MEASURED}", style="dim")
    if len(measured) > _SHOWN_RANKS:
        yield Text(f"… {len(measured) - _SHOWN_RANKS} more ranks")
    others = [stats.rank for stats in analysis.ranks if stats.times is None]
    if others:
        yield Text(f"{rank_list(others)}: {NOT_MEASURED}, no step of theirs is counted")


def _row(stats: RankStats, names: tuple[str, ...]) -> tuple[str, ...]:
    times = [_milliseconds(stats.times, name) for name in names] if stats.times else []
    return (f"rank {stats.rank}", stats.host, *map(_number, times))


def _milliseconds(times: PhaseTimes, name: str) -> float | None:
    value: float | None = getattr(times, f"{name}_ms")
    return value


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f}"


def _finding(result: CheckResult, finding: Finding, *, short: bool) -> Iterator[RenderableType]:
    head = Text()
    head.append_text(said(f"{result.code} {result.name}", style=_STYLES[finding.severity]))
    lost = f", {finding.lost_s:.1f} s lost" if finding.lost_s is not None else ""
    head.append(f"  {finding.severity.label}, {finding.confidence.value}{lost}", style="dim")
    yield head
    yield Padding(said(finding.message), (0, 0, 0, 2))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for location in finding.where:
        rows.add_row("where", _place(location))
    if not short:
        for index, evidence in enumerate(finding.evidence):
            rows.add_row("" if index else "evidence", _evidence(evidence))
    rows.add_row("fix", said(finding.fix))
    yield Padding(rows, (0, 0, 0, 2))


def _place(location: Location) -> Text:
    file = Path(location.file)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return said(f"rank {location.rank}: {shown}:{location.line} in {location.function}")


def _evidence(evidence: Evidence) -> Text:
    value, unit = evidence.value, evidence.unit
    if value is None:
        shown, unit = NOT_MEASURED, ""
    elif isinstance(value, str):
        shown = value
    else:
        shown = f"{value:,.1f}" if isinstance(value, float) and value >= 0.1 else f"{value:.4g}"
    threshold = (
        f" (threshold {evidence.threshold:g})"
        if isinstance(evidence.threshold, (int, float))
        else ""
    )
    return said(f"{evidence.what}: {shown} {unit}".rstrip() + threshold)


def _closing(report: Report, *, hidden: int, short: bool) -> Iterator[RenderableType]:
    if not report.findings:
        clean = sum(result.outcome is Outcome.CLEAN for result in report.results)
        yield Text(
            f"{_counted(clean, 'check')} looked and found nothing.", style="green" if clean else ""
        )
    for note in report.notes:
        yield said(f"note: {note}", style="dim")
    if short:
        more = f"{hidden} more finding{'s' if hidden > 1 else ''}; " if hidden > 0 else ""
        yield said(f"{more}all of it: ddpdoctor report {_run_path(report)}", style="dim")
        return
    clean_codes = [f"{r.code} {r.name}" for r in report.results if r.outcome is Outcome.CLEAN]
    if clean_codes and report.findings:
        yield said(f"clean: {', '.join(clean_codes)}", style="dim")
    yield from _not_looked(report)


def _not_looked(report: Report) -> Iterator[Text]:
    """Checks that could not look, those for one reason together, and those that crashed."""
    skipped: dict[str | None, list[str]] = {}
    for result in report.results:
        if result.outcome is Outcome.SKIPPED:
            skipped.setdefault(result.reason, []).append(f"{result.code} {result.name}")
        elif result.outcome is Outcome.CRASH:
            yield said(f"crashed: {result.code} {result.name}: {result.reason}", style="dim")
    for reason, names in skipped.items():
        yield said(f"skipped: {', '.join(names)}: {reason}", style="dim")


def _run_path(report: Report) -> str:
    if report.analysis is None:
        return ""
    path = report.analysis.run.path
    run = path.parent if path.name.startswith("attempt-") else path
    relative = run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run
    return str(relative)
