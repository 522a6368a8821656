"""A table of numbers on a page: with a link to the timeline a row, and to the CSV of all rows."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ddpdoctor.dashboards.pages.frame import Relative, named
from ddpdoctor.dashboards.pages.overview import NO_TOOLBAR, NOT_MEASURED
from ddpdoctor.sheets import Cell, Column, Row, Sheet

MINUS = "\N{MINUS SIGN}"
MOST_ROWS = 256  # on a page; the CSV has them all


def page(title: str, *parts: Component) -> Component:
    return html.Div([html.H1(title, className="page-title"), *parts], className="overview")


def panel(title: str, note: str, *content: Component) -> Component:
    head = html.Div(
        [html.H2(title), html.Span(note, className="dim")], className="section-head"
    )  # fmt: skip
    return html.Section([head, *content], className="panel chart")


def chart(title: str, note: str, name: str, label: str) -> Component:
    graph = html.Div(dcc.Graph(id=name, config=NO_TOOLBAR), role="img", **named(label))
    return panel(title, note, graph)


def missing(title: str, says: str) -> Component:
    """In place of what was not recorded."""
    return panel(title, "", html.P(says, className="missing"))


def sheet_panel(
    sheet: Sheet,
    name: str,
    relative: Relative,
    note: str = "",
    culprits: frozenset[int] = frozenset(),
) -> Component:
    """Rows of ranks that findings blame are marked."""
    if not sheet.rows:
        return missing(sheet.title, sheet.missing)
    shown = sheet.rows[:MOST_ROWS]
    parts = [note] if note else []
    if len(shown) < len(sheet.rows):
        parts.append(f"the first {MOST_ROWS} of {len(sheet.rows)}")
    csv = html.A("CSV", href=relative(f"/data/csv/{name}"), className="button", download="")
    head = html.Div(
        [html.H2(sheet.title), html.Span(" · ".join(parts), className="dim"), csv],
        className="section-head",
    )
    table = html.Table(
        [
            html.Thead(html.Tr([_heading(column) for column in sheet.columns])),
            html.Tbody([_row(sheet.columns, row, relative, culprits) for row in shown]),
        ],
        className="sheet",
    )
    box = html.Div(
        table, className="scrolls", tabIndex=0, role="region", **named(f"Table: {sheet.title}")
    )
    return html.Section([head, box], className="panel")


def _heading(column: Column) -> Component:
    if not column.note:
        return html.Th(column.name, scope="col")
    return html.Th(html.Abbr(column.name, title=column.note), scope="col")


def _row(
    columns: tuple[Column, ...], row: Row, relative: Relative, culprits: frozenset[int]
) -> Component:
    cells = [_cell(cell, column) for cell, column in zip(row.cells, columns, strict=True)]
    if row.view is not None:
        first = cells[0].children
        where = f"{relative('/timeline')}?{row.view}"
        cells[0].children = html.A(first, href=where, title="Show on the timeline")
    ranks = (cell for cell, column in zip(row.cells, columns, strict=True) if column.name == "rank")
    is_blamed = any(rank in culprits for rank in ranks)
    return html.Tr(cells, className="culprit" if is_blamed else "")


def _cell(cell: Cell, column: Column) -> Component:
    if cell is None:
        return html.Td(NOT_MEASURED, className="dim number")
    if isinstance(cell, float):
        return html.Td(f"{cell:,.{column.digits}f}".replace("-", MINUS), className="number")
    return html.Td(str(cell), className="number" if isinstance(cell, int) else "")
