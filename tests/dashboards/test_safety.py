"""Who gets in, what the answers forbid the browser, and that names stay text."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
from flask.testing import FlaskClient

from ddpdoctor.dashboards import create_app
from ddpdoctor.dashboards.safety import cookie_name
from ddpdoctor.dashboards.server import Address, CannotServe, new_token
from ddpdoctor.errors import NotARun
from ddpdoctor.report import Report
from tests.builders import rank_info, with_ranks
from tests.dashboards.shown import late_report, late_run, report_on

TOKEN = "a-token-of-the-test"  # noqa: S105
ROUTES = [
    "/", "/timeline", "/data/meta", "/data/steps", "/data/live", "/data/table", "/data/csv/ranks",
    "/data/page.html", "/data/table.csv", "/data/trace.json.gz", "/data/bucket/0",
    "/data/blame/0/0", "/data/phases/10/0/1/0",
    "/data/window", "/data/span/1", "/data/call/1",
    "/_dash-layout", "/_dash-dependencies", "/assets/style.css", "/assets/timeline/main.js",
]  # fmt: skip


@pytest.fixture(scope="module")
def report() -> Report:
    return late_report()


@pytest.fixture
def client(report: Report) -> FlaskClient:
    return create_app(report, token=TOKEN, allowed_hosts=["proxy.example"]).server.test_client()


def entered(client: FlaskClient) -> FlaskClient:
    assert client.get(f"/?token={TOKEN}").status_code == 302
    return client


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_needs_the_token(client: FlaskClient, route: str) -> None:
    assert client.get(route).status_code == 403
    assert client.get(f"{route}?token=wrong").status_code == 403
    assert entered(client).get(route, buffered=True).status_code == 200


def test_callbacks_need_the_token(client: FlaskClient) -> None:
    body = {
        "output": "page.children",
        "outputs": {"id": "page", "property": "children"},
        "inputs": [
            {"id": "address", "property": "pathname", "value": "/"},
            {"id": "version", "property": "data", "value": 0},
        ],
        "changedPropIds": ["address.pathname"],
    }
    assert client.post("/_dash-update-component", json=body).status_code == 403
    answer = entered(client).post("/_dash-update-component", json=body)
    assert answer.status_code == 200
    assert "arrives last" in answer.text


def test_a_wrong_token_is_refused_even_with_the_cookie(client: FlaskClient) -> None:
    assert entered(client).get("/?token=wrong").status_code == 403


def test_the_token_goes_into_a_cookie_and_out_of_the_address(client: FlaskClient) -> None:
    answer = client.get(f"/timeline?rank=2&token={TOKEN}&sync=20")
    assert answer.status_code == 302
    assert answer.headers["Location"] == "./timeline?rank=2&sync=20"
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{cookie_name(TOKEN)}={TOKEN}")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_the_redirect_stays_on_this_server(client: FlaskClient) -> None:
    answer = client.get(f"http://localhost//evil.example/x?token={TOKEN}")
    assert answer.headers["Location"] == "./x"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil@127.0.0.1", ""])
def test_a_foreign_host_name_is_refused_before_the_token_is_read(
    client: FlaskClient, host: str
) -> None:
    answer = client.get(f"/?token={TOKEN}", headers={"Host": host})
    assert answer.status_code == 400
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    "host", ["localhost:8050", "127.0.0.1:1", "[::1]:8050", "proxy.example", "PROXY.example:443"]
)
def test_trusted_host_names(client: FlaskClient, host: str) -> None:
    assert client.get(f"/?token={TOKEN}", headers={"Host": host}).status_code == 302


def test_without_token_the_host_name_still_counts(report: Report) -> None:
    client = create_app(report, token=None).server.test_client()
    assert client.get("/").status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_headers_keep_everything_local(client: FlaskClient) -> None:
    headers = entered(client).get("/").headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    script = next(part for part in policy.split("; ") if part.startswith("script-src"))
    assert "unsafe" not in script
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_names_no_other_machine(client: FlaskClient) -> None:
    page = entered(client).get("/").text
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/data/span/../../etc/passwd"]
)
def test_no_path_leads_out_of_the_assets(client: FlaskClient, path: str) -> None:
    answer = entered(client).get(path)
    assert "create_app" not in answer.text
    assert "root:" not in answer.text


def test_bad_numbers_in_the_address(client: FlaskClient) -> None:
    entered(client)
    assert client.get("/data/window?t0=nan").status_code == 400
    assert client.get("/data/window?t0=x&t1=2").status_code == 400
    assert client.get("/data/span/999999999").status_code == 404
    assert client.get("/data/call/999999999").status_code == 404


def test_large_answers_are_packed_where_the_browser_can(client: FlaskClient) -> None:
    plain = entered(client).get("/data/window")
    packed = client.get("/data/window", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data


def test_tiles_side_by_side_come_in_one_answer(client: FlaskClient) -> None:
    entered(client)
    for path in ("/data/phases/13/{}/1/0", "/data/blame/0/{}"):
        alone = [client.get(path.format(tile)).data for tile in (0, 1, 2)]
        assert client.get(f"{path.format(0)}?tiles=3").data == b"".join(alone)
    for count in ("0", "9", "-1", "x"):
        assert client.get(f"/data/blame/0/0?tiles={count}").status_code == 400


def test_names_from_traces_stay_text() -> None:
    name = "<img src=x onerror=alert(1)>"
    run = with_ranks(
        late_run(), lambda trace: replace(trace, info=rank_info(trace.info.rank, 4, host=name))
    )
    client = create_app(report_on(run), token=None).server.test_client()
    assert name not in client.get("/").text
    meta = client.get("/data/meta")
    assert meta.mimetype == "application/json"
    assert json.loads(meta.data)["hosts"] == [name] * 4


def test_findings_carry_a_link_to_their_place(client: FlaskClient) -> None:
    findings = json.loads(entered(client).get("/data/meta").data)["findings"]
    late = next(finding for finding in findings if finding["id"] == "DD101.0")
    assert "rank=2" in late["query"]
    assert "sync=" in late["query"]
    assert "finding=DD101.0" in late["query"]


def test_a_prefix_of_a_proxy_is_kept_in_all_addresses(report: Report) -> None:
    app = create_app(report, token=None, prefix="/user/x/proxy/8050/")
    page = app.server.test_client().get("/").text
    assert 'src="/user/x/proxy/8050/assets/timeline/main.js"' in page
    assert app.get_relative_path("/data/") == "/user/x/proxy/8050/data/"


def test_a_report_without_a_run_is_refused() -> None:
    with pytest.raises(NotARun, match="recorded runs"):
        create_app(Report("hang", "job", ()), token=None)


def test_no_token_is_for_this_machine_only() -> None:
    assert new_token("127.0.0.1", wanted=False) is None
    with pytest.raises(CannotServe, match=r"for 127\.0\.0\.1 only"):
        new_token("0.0.0.0", wanted=False)  # noqa: S104
    first, second = new_token("0.0.0.0", wanted=True), new_token("127.0.0.1", wanted=True)  # noqa: S104
    assert first != second
    assert first is not None
    assert len(first) >= 32


def test_the_printed_address_can_be_opened() -> None:
    assert Address("127.0.0.1", 8050, "abc").url == "http://127.0.0.1:8050/?token=abc"
    assert Address("0.0.0.0", 1, "abc").url == "http://127.0.0.1:1/?token=abc"  # noqa: S104
    assert Address("::1", 1, None).url == "http://[::1]:1/"
    assert Address("127.0.0.1", 8050, "abc").tunnel.startswith("ssh -L 8050:127.0.0.1:8050 ")
