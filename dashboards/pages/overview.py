"""The overview: headline numbers, findings by the time they cost, and where a step goes."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from ddpdoctor.analysis.headline import Headline
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.checks import CheckResult, Outcome, find_check
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.pages.frame import Relative, named
from ddpdoctor.findings import Evidence, Finding
from ddpdoctor.report import Report

NO_TOOLBAR: Final[Any] = {
    "displayModeBar": False,
    "showSendToCloud": False,
    "responsive": True,
}
NOT_MEASURED = "not measured"


def overview(
    report: Report,
    headline: Headline,
    steps: StepRange,
    findings: list[PlacedFinding],
    relative: Relative,
) -> Component:
    return html.Div(
        [
            html.H1("Overview", className="unseen"),
            _numbers(headline, steps),
            _findings(report, findings, relative),
            _notes(report),
            html.Div(
                [
                    _chart(
                        "Where a step goes, by rank",
                        "mean of the counted steps",
                        "rank-bars",
                        "Stacked bars: milliseconds of each rank's step by phase",
                    ),
                    _chart(
                        "Own time over the other ranks",
                        "a click opens the timeline",
                        "excess-map",
                        "Heat map of rank by step: own time over the median of the others",
                    ),
                ],
                className="charts",
            ),
            _chart(
                "Where each step goes",
                "mean of the ranks, warm-up included",
                "step-areas",
                "Stacked areas: milliseconds of each step by phase",
            ),
        ],
        className="overview",
    )


def _numbers(numbers: Headline, steps: StepRange) -> Component:
    cards = [
        (
            "Step",
            _ms(numbers.step_ms),
            f"mean of {steps.counted} steps",
            "",
        ),
        (
            "Time that trained",
            _percent(numbers.trained_share),
            "of a step: forward, backward, optimizer",
            "",
        ),
        _wait_card(numbers),
        (
            "Transfer",
            _ms(numbers.transfer_ms),
            _of_step(numbers, numbers.transfer_share),
            "transfer",
        ),
        (
            "Input, slowest rank",
            _ms(numbers.input_ms),
            "" if numbers.input_rank is None else f"rank {numbers.input_rank}",
            "input",
        ),
        (
            "Transfer hidden",
            _percent(numbers.hidden_share),
            "behind compute",
            "",
        ),
    ]
    return html.Section(
        [
            html.Div(
                [
                    html.Div(title, className="card-title"),
                    html.Div(value, className=f"card-value {tone}".strip()),
                    html.Div(note, className="card-note"),
                ],
                className="card",
            )
            for title, value, note, tone in cards
        ],
        className="numbers",
        **named("Headline numbers"),
    )


def _wait_card(numbers: Headline) -> tuple[str, str, str, str]:
    if numbers.wait_ms is None and numbers.blocked_ms is not None:
        return ("In collectives", _ms(numbers.blocked_ms), "wait and transfer together", "wait")
    return (
        "Wait for other ranks",
        _ms(numbers.wait_ms),
        _of_step(numbers, numbers.wait_share),
        "wait",
    )


def _ms(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f} ms"


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{100 * share:.0f} %"


def _of_step(numbers: Headline, share: float | None) -> str:
    if share is not None:
        return f"{100 * share:.0f} % of a step"
    return "no step is counted" if numbers.step_ms is None else "the clocks cannot be compared"


def _findings(report: Report, findings: list[PlacedFinding], relative: Relative) -> Component:
    count = len(findings)
    said = (
        f"{count} finding{'s' * (count != 1)}, what to read first on top" if count else "no finding"
    )
    cards = [_finding(placed, relative) for placed in findings]
    return html.Section(
        [
            html.Div(
                [html.H2("What costs you most"), html.Span(said, className="dim")],
                className="section-head",
            ),
            *(cards or [html.P(_nothing_found(report), className="dim")]),
            _other_checks(report.results),
        ],
        className="panel",
    )


def _nothing_found(report: Report) -> str:
    clean = sum(result.outcome is Outcome.CLEAN for result in report.results)
    return f"{clean} of {len(report.results)} checks looked at this run and found nothing."


def _finding(placed: PlacedFinding, relative: Relative) -> Component:
    finding = placed.finding
    return html.Article(
        [
            html.Div(
                [
                    html.Span(finding.severity.label, className=f"badge {finding.severity.label}"),
                    html.Span(finding.confidence.value, className="confidence", title="How sure"),
                ],
                className="finding-mark",
            ),
            html.Div(_finding_text(placed), className="finding-text"),
            html.Div(_finding_side(placed, relative), className="finding-side"),
        ],
        className="finding",
        id=f"finding-{placed.id.replace('.', '-')}",
    )


def _finding_text(placed: PlacedFinding) -> list[Component]:
    finding = placed.finding
    parts = [
        html.H3(
            [
                finding.message[:1].upper() + finding.message[1:],
                html.Span(f"{placed.result.code} {placed.result.name}", className="code"),
            ]
        ),
        html.P([html.B("Fix. "), finding.fix], className="fix"),
        html.Dl(_facts(finding), className="facts"),
    ]
    if finding.evidence:
        parts.append(
            html.Details(
                [html.Summary(f"Evidence ({len(finding.evidence)})"), _evidence(finding.evidence)]
            )
        )
    about = find_check(placed.result.code).explanation
    parts.append(html.Details([html.Summary("About this check"), html.Pre(about)]))
    return parts


def _facts(finding: Finding) -> list[Component]:
    facts = [
        ("culprit ranks", _ranks(finding.culprits)),
        ("waiting ranks", _ranks(finding.victims)),
        ("hosts", ", ".join(finding.hosts)),
        ("steps", ", ".join(f"{first}–{last}" for first, last in finding.steps)),
        ("where", ", ".join(f"{at.file}:{at.line} in {at.function}" for at in finding.where[:3])),
    ]
    return [html.Div([html.Dt(name), html.Dd(text)]) for name, text in facts if text]


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:12])
    return f"{shown} and {len(ranks) - 12} more" if len(ranks) > 12 else shown


def _evidence(evidence: tuple[Evidence, ...]) -> Component:
    rows = [
        html.Tr([html.Td(each.what), html.Td(_value(each.value, each.unit)), html.Td(_limit(each))])
        for each in evidence
    ]
    head = html.Tr([html.Th(name, scope="col") for name in ("what", "measured", "threshold")])
    return html.Table([html.Thead(head), html.Tbody(rows)], className="evidence")


def _value(value: float | str | None, unit: str) -> str:
    if value is None:
        return NOT_MEASURED
    if isinstance(value, str):
        shown = value
    else:
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{shown} {unit}".strip()


def _limit(evidence: Evidence) -> str:
    return "" if evidence.threshold is None else _value(evidence.threshold, evidence.unit)


def _finding_side(placed: PlacedFinding, relative: Relative) -> list[Component]:
    lost = placed.finding.lost_s
    parts: list[Component] = []
    if lost is not None:
        parts += [html.Div(f"{lost:.1f} s", className="lost"), html.Div("lost", className="dim")]
    elif placed.hangs:
        parts.append(html.Div("the job goes no further", className="dim"))
    else:
        parts += [html.Div("–", className="lost"), html.Div("not in seconds", className="dim")]
    if placed.query is not None:
        parts.append(
            html.A(
                "Show on timeline",
                href=f"{relative('/timeline')}?{placed.query}",
                className="button accent",
            )
        )
    if placed.page is not None:
        path, name = placed.page
        parts.append(html.A(name, href=relative(path), className="button"))
    return parts


def _other_checks(results: tuple[CheckResult, ...]) -> Component:
    others = [result for result in results if result.outcome is not Outcome.FINDINGS]
    rows = [
        html.Li(
            [
                html.B(f"{result.code} {result.name}"),
                f": {result.outcome.value}" + (f", {result.reason}" if result.reason else ""),
            ]
        )
        for result in others
    ]
    counts = Counter(result.outcome.value for result in others)
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return html.Details([html.Summary(f"Other checks: {said}"), html.Ul(rows)], className="others")


def _notes(report: Report) -> Component:
    if not report.notes:
        return html.Div(hidden=True)
    return html.Section(
        [html.H2("Notes on the record"), html.Ul([html.Li(note) for note in report.notes])],
        className="panel notes",
    )


def _chart(title: str, note: str, chart: str, label: str) -> Component:
    return html.Section(
        [
            html.Div([html.H2(title), html.Span(note, className="dim")], className="section-head"),
            html.Div(dcc.Graph(id=chart, config=NO_TOOLBAR), role="img", **named(label)),
        ],
        className="panel chart",
    )
