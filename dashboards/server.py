"""Serves the app on a port, without a log of requests: their addresses may carry the token."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import Final

from dash import Dash
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from ddpdoctor.dashboards.runs import RunsApp
from ddpdoctor.dashboards.safety import LOOPBACK_HOSTS
from ddpdoctor.errors import DdpDoctorError

_ANY: Final = ("0.0.0.0", "::")  # noqa: S104  compared, not bound by default


class CannotServe(DdpDoctorError):
    """The port is taken, or the options would open the dashboard to others without a token."""


class _QuietHandler(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@dataclass(frozen=True)
class Address:
    """Where a started server can be reached."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        name = "127.0.0.1" if self.host in _ANY else self.host
        shown = f"[{name}]" if ":" in name else name
        return f"http://{shown}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def tunnel(self) -> str:
        """The command for one's own machine, when this is a remote one."""
        there = "127.0.0.1" if self.host in _ANY else self.host
        return f"ssh -L {self.port}:{there}:{self.port} {socket.gethostname()}"


def new_token(host: str, wanted: bool) -> str | None:
    """None only where it was declined and nobody but this machine can connect."""
    if wanted:
        return secrets.token_urlsafe(24)
    if host not in LOOPBACK_HOSTS:
        raise CannotServe(f"--no-token is for 127.0.0.1 only: on {host} others could read the run")
    return None


def hosts_of(host: str) -> tuple[str, ...]:
    """Names under which a server that listens there may be asked for."""
    if host in _ANY:
        return (socket.gethostname(), socket.getfqdn())
    return (host,)


def start(app: Dash | RunsApp, host: str, port: int) -> BaseWSGIServer:
    """Bound and listening; the caller runs `serve_forever`. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise CannotServe(
            f"cannot listen on {host}:{port} ({error.strerror}): take another by --port, "
            "or --port 0 for a free one"
        ) from error
    with listening:  # the server takes a duplicate
        return make_server(
            host, port, app.server if isinstance(app, Dash) else app, threaded=True,
            request_handler=_QuietHandler, fd=listening.fileno(),
        )  # fmt: skip


def serve(server: BaseWSGIServer) -> None:
    """Until Ctrl-C, which is the ordinary end."""
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
