"""A folder of runs to choose from: a list, and each run's dashboard under its id."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import flask
from dash import Dash

from ddpdoctor.dashboards.app import create_app
from ddpdoctor.dashboards.pages.frame import swatches
from ddpdoctor.dashboards.safety import add_headers, guard
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.following import first_report
from ddpdoctor.runfolders import list_runs
from ddpdoctor.runlist import RunSummary, summary

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_OF_RUN: Final = re.compile(r"/run/([^/]+)(/.*)?")
MOST_OPEN: Final = 8  # runs kept in memory; the one opened first goes
COLUMNS: Final = ("run", "last written", "ranks", "backend", "attempts", "state")


class RunsApp:
    """WSGI: `/` is the list, `/run/ID/` a dashboard. A run is found by its id, never by a path."""

    def __init__(
        self, folder: Path, token: str | None, allowed_hosts: Iterable[str] = (), prefix: str = "/"
    ) -> None:
        self._folder = folder
        self._token = token
        self._hosts = tuple(allowed_hosts)
        self._prefix = prefix
        self._open: dict[str, Dash] = {}
        self._lock = threading.Lock()
        self.server = self._list_server()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = _OF_RUN.fullmatch(environ["PATH_INFO"])
        if found is None:
            return self._list(environ, start_response)
        name = found[1]
        script = f"{environ.get('SCRIPT_NAME', '')}/run/{name}"
        inner = {**environ, "SCRIPT_NAME": script, "PATH_INFO": found[2] or "/"}
        try:
            app = self._app_of(name)
        except DdpDoctorError as error:
            failed: Iterable[bytes] = self._failed(str(error))(inner, start_response)
            return failed
        if app is None:
            return self._list(environ, start_response)
        answer: Iterable[bytes] = app.server.wsgi_app(inner, start_response)
        return answer

    def _list(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer: Iterable[bytes] = self.server.wsgi_app(environ, start_response)
        return answer

    def _app_of(self, name: str) -> Dash | None:
        """None where no run has this id. Raises NotARun, BadTraceFile."""
        with self._lock:
            if name not in self._open:
                paths = {path.name: path for path in list_runs(self._folder)}
                if name not in paths:
                    return None
                while len(self._open) >= MOST_OPEN:
                    del self._open[next(iter(self._open))]
                self._open[name] = create_app(
                    first_report(paths[name]), token=self._token, allowed_hosts=self._hosts,
                    prefix=f"{self._prefix}run/{name}/", follow=True, all_runs=self._prefix,
                )  # fmt: skip
            return self._open[name]

    def _list_server(self) -> flask.Flask:
        server = flask.Flask(__name__, static_folder="assets", static_url_path="/assets")
        guard(server, self._token, self._hosts)

        @server.get("/")
        def runs() -> str:
            found = [summary(path) for path in reversed(list_runs(self._folder))]
            return _document(_table(found), len(found))

        add_headers(server, ())
        return server

    def _failed(self, sentence: str) -> Callable[..., Any]:
        """An answer, behind the same guard, for a run that cannot be read."""
        server = flask.Flask(f"{__name__}.failed")
        guard(server, self._token, self._hosts)

        @server.route("/", defaults={"path": ""})
        @server.route("/<path:path>")
        def failed(path: str) -> flask.Response:
            del path
            return flask.Response(f"{sentence}\n", 422, mimetype="text/plain")

        return server


def _table(runs: list[RunSummary]) -> str:
    if not runs:
        return '<p class="missing">No recorded run lies here.</p>'
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    return (
        f'<table class="sheet"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(map(_row, runs))}</tbody></table>"
    )


def _row(run: RunSummary) -> str:
    ranks = "?" if run.ranks is None else f"{run.ranks} of {run.world_size}"
    name = html.escape(run.run, quote=True)
    cells = (f"{run.written:%Y-%m-%d %H:%M}", ranks, run.backend or "?", str(run.attempts),
             run.state)  # fmt: skip
    rest = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr><td><a href="run/{name}/">{name}</a></td>{rest}</tr>'


def _document(table: str, count: int) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Runs · ddpdoctor</title>
<style>{swatches()}</style>
<link rel="icon" href="assets/icon.svg">
<link rel="stylesheet" href="assets/style.css">
<script src="assets/theme.js"></script>
</head>
<body>
<header class="top"><b class="brand">ddpdoctor</b></header>
<main class="overview"><h1 class="page-title">Recorded runs</h1>
<section class="panel"><div class="section-head"><h2>Newest first</h2>
<span class="dim">{count} runs</span></div>{table}</section></main>
</body>
</html>
"""
