"""Real slow links: network namespaces, their traffic shaped by tbf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.analysis.gaintypes import Fix
from tests.hosts import check_network, linked, needs_root, shape, star, train
from tests.launching import ddpdoctor, finish

pytestmark = [pytest.mark.job, needs_root]

RATES_MBIT = (100, 200, 400)
FRAME = 1514 / 1448  # bytes on the link for each of TCP's payload


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads(finish(ddpdoctor("report", "--json", "--fail-on", "never"), folder).out)


def result(report: dict[str, Any], code: str) -> dict[str, Any]:
    return next(result for result in report["results"] if result["code"] == code)


def test_a_slow_link_is_bandwidth_bound_at_its_rate(tmp_path: Path) -> None:
    """At three rates of one pair of hosts."""
    with linked(RATES_MBIT[0]) as hosts:
        for rate in RATES_MBIT:
            for host in hosts:
                shape(host, "eth0", rate)
            folder = tmp_path / str(rate)
            folder.mkdir()
            train(hosts, folder, "--wrap", "--steps", "20", "--width", "1024")
            assert_it_is_the_bandwidth(folder, rate)


def assert_it_is_the_bandwidth(folder: Path, rate_mbit: float) -> None:
    report = report_of(folder)
    assert report["primary"] == "DD201"
    (finding,) = result(report, "DD201")["findings"]
    assert finding["severity"] == "error"
    assert "a step would take" in finding["fix"]
    for other in ("DD101", "DD202", "DD203", "DD205"):
        assert result(report, other)["outcome"] == "clean", other
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    analysis = analyze(load_run(run))
    assert analysis.link is not None
    payload = rate_mbit / 8 / 1e3 / FRAME
    assert analysis.link.beta_gb_per_s == pytest.approx(payload, rel=0.10)
    accumulated = analysis.gains.of(Fix.ACCUMULATE)
    assert accumulated is not None
    assert accumulated.is_sure
    assert_transfer_takes_what_the_link_takes(analysis.tables, rate_mbit)


def assert_transfer_takes_what_the_link_takes(tables: Any, rate_mbit: float) -> None:
    """In a middle step. One may take less: of two ranks the first has sent a part already when
    the other comes; and more, where gloo's threads lack a CPU."""
    buckets = tables.collectives[tables.collectives["bucket"] >= 0]
    for rank in range(2):
        sent = buckets[buckets["rank"] == rank].groupby("step")["nbytes"].sum().median()
        steps = tables.steps[(tables.steps["rank"] == rank) & (tables.steps["step"] > 3)]
        moving_ms = (steps["transfer_ns"] + steps["overlapped_ns"]).median() / 1e6
        assert 0.9 <= moving_ms / (sent * FRAME * 8 / rate_mbit / 1e3) <= 1.3


def test_a_late_rank_on_a_slow_link_is_not_taken_for_bandwidth(tmp_path: Path) -> None:
    """The model is small, so that the link is not what costs."""
    with linked(200) as hosts:
        train(hosts, tmp_path, "--wrap", "--steps", "30", "--width", "64", "--fault", "forward")

    report = report_of(tmp_path)

    assert report["primary"] == "DD101"
    for code in ("DD201", "DD202", "DD203", "DD205"):
        assert result(report, code)["outcome"] == "clean", code


@pytest.mark.long
def test_one_slow_host_of_three_is_named_before_and_after_a_run(tmp_path: Path) -> None:
    with star([400, 100, 400]) as hosts:
        before = check_network(hosts, tmp_path)
        train(hosts, tmp_path, "--wrap", "--steps", "15", "--width", "512")

    report = report_of(tmp_path)

    assert [found["culprits"] for found in result(before, "DD206")["findings"]] == [[1]]
    (finding,) = result(report, "DD206")["findings"]
    assert finding["culprits"] == [1]
    assert finding["severity"] == "warning"
    assert report["primary"] == "DD206"
    assert result(report, "DD201")["outcome"] == "clean"
