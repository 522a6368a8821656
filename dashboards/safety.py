"""Who may read the dashboard: trusted host names, a token, and headers that keep it local."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlencode

import flask

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "::1")
COMPRESS_ABOVE_BYTES: Final = 4096
_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_COMPRESSED: Final = ("text/", "application/json", "application/javascript", "application/octet")


def guard(server: flask.Flask, token: str | None, allowed_hosts: Iterable[str]) -> None:
    """Refuse foreign host names (400) and requests without the token (403), on every route."""
    trusted = {host.casefold() for host in (*LOOPBACK_HOSTS, *allowed_hosts)}

    @server.before_request
    def check() -> flask.Response | None:
        if _host_name(flask.request.host) not in trusted:
            return _refusal(400, "This host name is not trusted; see --allow-host.")
        return None if token is None else _check_token(token)


def _host_name(host: str) -> str | None:
    """Without port and brackets; None for what is no plain host name."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").casefold() if match else None


def _check_token(token: str) -> flask.Response | None:
    """The token comes once in the URL and is kept in a cookie that scripts cannot read."""
    cookie = cookie_name(token)
    offered = flask.request.args.get("token")
    if offered is not None and _equal(offered, token):
        return _redirect_with_cookie(cookie, token)
    if offered is None and _equal(flask.request.cookies.get(cookie, ""), token):
        return None
    return _refusal(403, "Open the address that ddpdoctor printed: it carries the token.")


def cookie_name(token: str) -> str:
    """Of its own for each server: cookies do not tell the ports of a host apart."""
    return "ddpdoctor-" + hashlib.sha256(token.encode()).hexdigest()[:12]


def _equal(offered: str, token: str) -> bool:
    return hmac.compare_digest(offered.encode(), token.encode())


def _redirect_with_cookie(cookie: str, token: str) -> flask.Response:
    """The same address without the token, so that it stays out of history and screenshots."""
    kept = [(k, v) for k, v in flask.request.args.items(multi=True) if k != "token"]
    # relative, since a proxy may put a prefix before; the last part, since //host leads elsewhere
    place = flask.request.path.rsplit("/", 1)[-1]
    response = flask.make_response("", 302)
    response.headers["Location"] = f"./{place}" + (f"?{urlencode(kept)}" if kept else "")
    response.autocorrect_location_header = False
    response.set_cookie(
        cookie, token, httponly=True, samesite="Strict", secure=flask.request.is_secure
    )
    return response


def _refusal(status: int, sentence: str) -> flask.Response:
    return flask.Response(f"{sentence}\n", status, mimetype="text/plain")


def add_headers(server: flask.Flask, script_hashes: Iterable[str]) -> None:
    """Nothing from outside, nothing to outside, and no guessing of types."""
    scripts = " ".join(("'self'", *script_hashes))
    policy = "; ".join(
        (
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",  # plotly sets styles of its own
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'self'",
        )
    )

    @server.after_request
    def harden(response: flask.Response) -> flask.Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["X-Frame-Options"] = "SAMEORIGIN"
        return _compressed(response)


def _compressed(response: flask.Response) -> flask.Response:
    """Over `ssh -L` the scripts would be most of the wait."""
    wanted = "gzip" in flask.request.headers.get("Accept-Encoding", "")
    fits = (response.mimetype or "").startswith(_COMPRESSED)
    if (
        not wanted
        or not fits
        or response.status_code != 200
        or "Content-Encoding" in response.headers
    ):
        return response
    response.direct_passthrough = False
    body = response.get_data()
    if len(body) > COMPRESS_ABOVE_BYTES:
        response.set_data(gzip.compress(body, 1))
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Vary"] = "Accept-Encoding, Cookie"
    return response
