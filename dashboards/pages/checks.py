"""Every check, and what it said of this run."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ddpdoctor.checks import CheckResult, Outcome, find_check
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.sheet import page, panel
from ddpdoctor.report import Report

GROUPS = (
    (Outcome.FINDINGS, "Found something"),
    (Outcome.CRASH, "Ended by a fault of their own"),
    (Outcome.CLEAN, "Looked and found nothing"),
    (Outcome.SKIPPED, "Could not judge"),
)


def checks_page(report: Report, findings: list[PlacedFinding], relative: Relative) -> Component:
    groups = [
        (title, [result for result in report.results if result.outcome is outcome])
        for outcome, title in GROUPS
    ]
    return page(
        "Checks",
        *(
            panel(
                title,
                f"{len(results)} of {len(report.results)}",
                *(_check(result, findings, relative) for result in results),
            )
            for title, results in groups
            if results
        ),
    )


def _check(result: CheckResult, findings: list[PlacedFinding], relative: Relative) -> Component:
    """One line, which unfolds to what the check looks for; its findings below it."""
    line = [html.B(result.code), html.Span(result.name, className="code")]
    if result.reason:
        line.append(html.Span(result.reason, className="dim"))
    about = html.Pre(find_check(result.code).explanation)
    own = [placed for placed in findings if placed.result.code == result.code]
    return html.Article(
        [html.Details([html.Summary(line), about]), *(_finding(each, relative) for each in own)],
        className="check",
    )


def _finding(placed: PlacedFinding, relative: Relative) -> Component:
    finding = placed.finding
    parts: list[Component | str] = [
        html.Span(finding.severity.label, className=f"badge {finding.severity.label}"),
        f" {finding.message} ",
    ]
    if placed.query is not None:
        where = f"{relative('/timeline')}?{placed.query}"
        parts.append(html.A("Show on timeline", href=where))
    return html.P(parts)
