"""A report as one HTML file: the same report object, its pictures as SVG within, nothing fetched.

Every text that comes from a run is escaped, and the page forbids scripts and requests itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ddpdoctor.analysis.gaintypes import Gain
from ddpdoctor.analysis.model import Analysis, RankStats
from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Evidence, Finding
from ddpdoctor.report import Report
from ddpdoctor.wording import printable, rank_list

MOST_RANKS: Final = 64  # bars; the slowest
_PHASES: Final = (  # the colours of the dashboard's light theme
    ("input", "#d97d00"), ("forward", "#2b9ae4"), ("backward", "#094b84"), ("wait", "#a01000"),
    ("transfer", "#008142"), ("blocked", "#8a5a1e"), ("optimizer", "#c873a8"),
    ("between", "#a39a9e"),
)  # fmt: skip
_WIDTH: Final = 860
_LABEL: Final = 130
_BAR: Final = 18
_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;color:#1b1f24;max-width:60rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.3rem}h2{font-size:1.1rem;margin-top:2rem}
.f{border-left:5px solid #59636e;padding:.2rem 1rem;margin:1.2rem 0}
.error{border-color:#a01000}.warning{border-color:#d97d00}.info{border-color:#2b9ae4}
.f p{margin:.4rem 0}table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;
text-align:left;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
th,.dim{color:#59636e;font-weight:normal}svg text{font:12px system-ui,sans-serif;fill:#1b1f24}
.key span{margin-right:1rem}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def to_html(report: Report) -> str:
    """The whole page."""
    title = f"ddpdoctor · {report.subject} {_text(report.name)}"
    body = "\n".join(_body(report, title))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _text(value: object) -> str:
    return escape(printable(str(value)))


def _body(report: Report, title: str) -> Iterator[str]:
    yield f"<h1>{title}</h1>"
    if report.analysis is not None:
        yield _facts(report.analysis)
        yield from _step(report.analysis)
    findings = report.findings
    yield f"<h2>Findings ({len(findings)})</h2>"
    if not findings:
        yield "<p>None.</p>"
    for result, finding in findings:
        yield _finding(result, finding)
    if report.analysis is not None:
        yield from _gains(report.analysis)
    yield from _checks(report.results)
    if report.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(n)}</li>" for n in report.notes) + "</ul>"


def _facts(analysis: Analysis) -> str:
    info, steps = analysis.run.info, analysis.steps
    hosts = len({stats.host for stats in analysis.ranks})
    return (
        f"<p>{info.world_size} ranks on {hosts} hosts · {_text(info.backend)} · "
        f"{steps.counted} steps counted, the first {steps.warmup} left out as warm-up</p>"
    )


def _step(analysis: Analysis) -> Iterator[str]:
    """Where a step of each rank goes."""
    measured = [stats for stats in analysis.ranks if stats.times is not None]
    if not measured:
        yield "<p>No whole step was recorded on all ranks.</p>"
        return
    slowest = sorted(measured, key=_step_ms, reverse=True)[:MOST_RANKS]
    shown = sorted(slowest, key=lambda stats: stats.rank)
    more = len(measured) - len(shown)
    yield "<h2>Where a step goes</h2>"
    yield _key(analysis)
    yield _bars([(f"rank {s.rank}", _parts(s)) for s in shown], max(map(_step_ms, shown)))
    if more:
        yield f'<p class="dim">{more} ranks with shorter steps are not drawn.</p>'


def _step_ms(stats: RankStats) -> float:
    return stats.times.step_ms if stats.times is not None else 0.0


def _parts(stats: RankStats) -> list[tuple[str, float]]:
    """Colour and milliseconds of each phase; waiting and transfer, or both as one."""
    times = {f"{name}": value for name, value in _named(stats).items() if value}
    if "wait" in times or "transfer" in times:
        times.pop("blocked", None)
    return [(colour, times[name]) for name, colour in _PHASES if name in times]


def _named(stats: RankStats) -> dict[str, float | None]:
    by_name = stats.times_by_name()
    return {name: by_name[f"{name}_ms"] for name, _ in _PHASES}


def _key(analysis: Analysis) -> str:
    used = {name for stats in analysis.ranks for name, value in _named(stats).items() if value}
    if used & {"wait", "transfer"}:
        used.discard("blocked")
    spans = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>'
        for name, colour in _PHASES
        if name in used
    )
    return f'<p class="key">{spans}</p>'


def _bars(rows: Sequence[tuple[str, list[tuple[str, float]]]], most_ms: float) -> str:
    """A stacked bar for each row, all on one scale."""
    scale = (_WIDTH - _LABEL - 90) / most_ms if most_ms > 0 else 0.0
    drawn = []
    for index, (label, parts) in enumerate(rows):
        top = index * (_BAR + 4)
        at = float(_LABEL)
        drawn.append(f'<text x="0" y="{top + 13}">{_text(label)}</text>')
        for colour, ms in parts:
            width = ms * scale
            drawn.append(
                f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{colour}"><title>{ms:.1f} ms</title></rect>'
            )
            at += width
        total = sum(ms for _, ms in parts)
        drawn.append(f'<text x="{at + 6:.1f}" y="{top + 13}">{total:.1f} ms</text>')
    height = len(rows) * (_BAR + 4)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(drawn)}</svg>'


def _finding(result: CheckResult, finding: Finding) -> str:
    lost = f", {finding.lost_s:.1f} s lost" if finding.lost_s is not None else ""
    where = "".join(
        f"<p>rank {each.rank}: {_text(each.file)}:{each.line} in {_text(each.function)}</p>"
        for each in finding.where
    )
    who = f"<p>culprits: {rank_list(finding.culprits)}</p>" if finding.culprits else ""
    rows = "".join(_evidence(each) for each in finding.evidence)
    return (
        f'<div class="f {finding.severity.label}"><p><b>{result.code} {result.name}</b> '
        f'<span class="dim">{finding.severity.label}, {finding.confidence.value}{lost}</span></p>'
        f"<p>{_text(finding.message)}</p>{who}{where}<table>{rows}</table>"
        f"<p><b>Fix:</b> {_text(finding.fix)}</p></div>"
    )


def _evidence(evidence: Evidence) -> str:
    return (
        f"<tr><th>{_text(evidence.what)}</th><td class=n>{_value(evidence.value)} "
        f"{_text(evidence.unit)}</td><td class=dim>{_threshold(evidence)}</td></tr>"
    )


def _value(value: float | str | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.4g}" if isinstance(value, (int, float)) else _text(value)


def _threshold(evidence: Evidence) -> str:
    return f"threshold {_value(evidence.threshold)}" if evidence.threshold is not None else ""


def _gains(analysis: Analysis) -> Iterator[str]:
    """A step now and after each fix; what may be wrong stands beside it."""
    gains = [gain for gain in analysis.gains.gains if gain.is_sure]
    if not gains:
        return
    yield "<h2>What fixes of the communication would gain</h2>"
    most = max(gain.step_ms for gain in gains)
    rows = [("now", [("#59636e", gains[0].step_ms)])]
    rows += [(gain.fix.value, [("#008142", max(0.0, gain.after_ms))]) for gain in gains]
    yield _bars(rows, most)
    yield "<table>" + "".join(_gain(gain) for gain in gains) + "</table>"
    yield '<p class="dim">By a replay of the recorded steps; each for itself.</p>'


def _gain(gain: Gain) -> str:
    return f"<tr><th>{gain.fix.value}</th><td>{_text(gain.setting)}</td><td>{gain}</td></tr>"


def _checks(results: Sequence[CheckResult]) -> Iterator[str]:
    yield "<h2>Checks</h2><table>"
    for result in results:
        if result.outcome is not Outcome.FINDINGS:
            reason = _text(result.reason) if result.reason else ""
            yield (
                f"<tr><td>{result.code} {result.name}</td><td>{result.outcome.value}</td>"
                f"<td class=dim>{reason}</td></tr>"
            )
    yield "</table>"
