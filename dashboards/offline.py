"""The timeline as one file that opens without a server: page, scripts, styles and data in it."""

from __future__ import annotations

import base64
import gzip
import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from dash.development.base_component import Component

from ddpdoctor.analysis.ragged import Ints
from ddpdoctor.analysis.tiles import pooled_columns
from ddpdoctor.dashboards.pages.frame import swatches
from ddpdoctor.dashboards.pages.timeline import timeline_page
from ddpdoctor.dashboards.routes import TILE, meta_of
from ddpdoctor.dashboards.shown import Shown
from ddpdoctor.dashboards.wire import encode, mark_columns, step_columns, window_columns
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.report import Report

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)
ASSETS: Final = Path(__file__).parent / "assets"
MOST_SPANS: Final = 200_000  # in a file: some 5 MB
LEAST_CELLS_PX: Final = 300  # a narrower canvas gets too fine a picture of the steps
_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_ATTRIBUTES: Final = {"className": "class", "tabIndex": "tabindex"}
_VOID: Final = ("input",)


class TooMuch(DdpDoctorError):
    """More spans than a file should hold."""


@dataclass(frozen=True)
class Stretch:
    """What single spans a file holds; `at` is the query string of the view that it opens with."""

    begin_ms: float
    end_ms: float
    rows: Ints
    at: str = ""


def write_page(report: Report, path: Path) -> None:
    """The whole run. Raises TooMuch, and CannotExport where it cannot be written."""
    from ddpdoctor.export import CannotExport

    shown = Shown(report)
    timeline = shown.timeline
    try:
        path.write_text(page_of(shown, Stretch(0.0, timeline.duration_ms, timeline.rows)))
    except OSError as error:
        raise CannotExport(f"{path}: cannot be written ({error.strerror})") from error


def page_of(shown: Shown, stretch: Stretch) -> str:
    """Raises TooMuch where the stretch holds more spans than a file should."""
    page = timeline_page(shown.timeline, shown.findings, shown.split, lambda path: "#")
    data = json.dumps(_data(shown, stretch)).replace("<", "\\u003c")
    start = json.dumps(stretch.at.lstrip("?")).replace("<", "\\u003c")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(shown.report.name)} · ddpdoctor</title>
<style>{swatches()}{(ASSETS / "style.css").read_text()}</style>
<script>window.dash_clientside = {{}};
{(ASSETS / "theme.js").read_text()}</script>
</head>
<body>
<header class="top"><b class="brand">ddpdoctor</b>
<span class="run-facts"><b>{html.escape(shown.report.name)}</b> {html.escape(shown.facts)}</span>
</header>
<main id="page">{markup(page)}</main>
<script>window.ddpOffline = {data};
if (!location.hash) history.replaceState(null, "", "#" + {start});</script>
<script type="module">
{bundle()}
</script>
</body>
</html>
"""


def _data(shown: Shown, stretch: Stretch) -> dict[str, Any]:
    timeline = shown.timeline
    spans, calls = timeline.window(stretch.begin_ms, stretch.end_ms, stretch.rows)
    marks = timeline.marks.within(stretch.begin_ms, stretch.end_ms)
    count = len(spans.id) + len(calls.id) + len(marks.rank)
    if count > MOST_SPANS:
        raise TooMuch(
            f"{count:,} spans are too many for one page (at most {MOST_SPANS:,}): export a "
            "shorter stretch from the dashboard, or the trace"
        )
    packed = {
        "meta": _packed(json.dumps(meta_of(shown)).encode()),
        "steps": _packed(encode(step_columns(shown.series))),
        "window": _packed(encode(window_columns(spans, calls) | mark_columns(marks))),
    }
    packed |= dict(_blame(shown))
    rows = stretch.rows
    held = {
        "t0": max(0.0, stretch.begin_ms),
        "t1": min(timeline.duration_ms, stretch.end_ms),
        "r0": int(rows[0]) if len(rows) else 0,
        "r1": int(rows[-1]) + 1 if len(rows) else 0,
    }
    return {"packed": packed, "held": held}


def _blame(shown: Shown) -> Iterator[tuple[str, str]]:
    """The pictures of the steps at all levels that a screen may ask for."""
    steps = shown.blame.shape[1]
    levels = 1 + max(0, math.ceil(math.log2(max(1, steps) / LEAST_CELLS_PX)))
    for level in range(levels):
        for tile in range(-(-steps // (TILE << level))):
            cells = pooled_columns(shown.blame, tile * TILE << level, TILE, 1 << level)
            yield f"blame/{level}/{tile}", _packed(np.ascontiguousarray(cells).tobytes())


def _packed(raw: bytes) -> str:
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()


def bundle() -> str:
    """All scripts as one, since a page from a file may not import: each module a function."""
    done: dict[str, str] = {}
    _add(done, "main")
    return "\n".join(done.values())


def _add(done: dict[str, str], name: str) -> None:
    if name in done:
        return
    source = (ASSETS / "timeline" / f"{name}.js").read_text()
    for _, other in _IMPORT.findall(source):
        _add(done, other)
    exported = ", ".join(named for _, named in _EXPORT.findall(source))
    body = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = module_{found[2]};\n", source)
    body = _EXPORT.sub(lambda found: found[1], body).replace("</script", "<\\/script")
    done[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def markup(node: Component | str | float | list[Any] | None) -> str:
    """HTML of the components of a page, names from traces escaped."""
    if node is None:
        return ""
    if isinstance(node, (list, tuple)):
        return "".join(map(markup, node))
    if not isinstance(node, Component):
        return html.escape(str(node))
    described = node.to_plotly_json()  # type: ignore[no-untyped-call]
    tag, props = described["type"].lower(), dict(described["props"])
    children = props.pop("children", None)
    attributes = "".join(_attribute(name, value) for name, value in props.items())
    return f"<{tag}{attributes}>" + ("" if tag in _VOID else f"{markup(children)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    shown = _ATTRIBUTES.get(name, name)
    return f" {shown}" if value is True else f' {shown}="{html.escape(str(value), quote=True)}"'
