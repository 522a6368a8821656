"""DD201 on a real slow link: two network namespaces, their traffic shaped by tbf."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor import analyze, load_run
from tests.hosts import ip, namespaces, needs_root, train
from tests.launching import ddpdoctor, finish

pytestmark = [pytest.mark.job, needs_root]

RATE_MBIT = 200
FRAME = 1514 / 1448  # bytes on the link for each of TCP's payload


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """Names of two namespaces, joined by a pair of interfaces of RATE_MBIT in each direction."""
    with namespaces(2) as names:
        one, other = names
        pair = f"link add eth0 type veth peer name eth0 netns {other}"
        ip("-n", one, *pair.split())
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            shape = f"qdisc add dev eth0 root tbf rate {RATE_MBIT}mbit burst 64kb latency 100ms"
            shaped = finish(["tc", "-n", name, *shape.split()], Path("/"))
            assert shaped.status == 0, shaped.err
        yield names


def report_of(folder: Path) -> dict:
    return json.loads(finish(ddpdoctor("report", "--json", "--fail-on", "never"), folder).out)


def test_a_slow_link_is_bandwidth_bound_at_its_rate(two_hosts: list[str], tmp_path: Path) -> None:
    train(two_hosts, tmp_path, "--wrap", "--steps", "25", "--width", "1024")

    report = report_of(tmp_path)

    assert report["primary"] == "DD201"
    (finding,) = next(r["findings"] for r in report["results"] if r["code"] == "DD201")
    assert finding["severity"] == "error"
    busbw = next(e["value"] for e in finding["evidence"] if e["what"] == "bus bandwidth reached")
    assert busbw == pytest.approx(RATE_MBIT / 8 / 1e3, rel=0.15)
    late = next(r for r in report["results"] if r["code"] == "DD101")
    assert late["outcome"] == "clean"
    assert_transfer_takes_what_the_link_takes(tmp_path)


def assert_transfer_takes_what_the_link_takes(folder: Path) -> None:
    """In the fastest step, that is: in others gloo's threads may lack a CPU."""
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    tables = analyze(load_run(run)).tables
    buckets = tables.collectives[tables.collectives["bucket"] >= 0]
    for rank in range(2):
        sent = buckets[buckets["rank"] == rank].groupby("step")["nbytes"].sum().median()
        steps = tables.steps[(tables.steps["rank"] == rank) & (tables.steps["step"] > 3)]
        moving = steps["transfer_ns"] + steps["overlapped_ns"]
        assert moving.min() / 1e6 == pytest.approx(sent * FRAME * 8 / RATE_MBIT / 1e3, rel=0.05)


def test_a_late_rank_on_a_slow_link_is_not_taken_for_bandwidth(
    two_hosts: list[str], tmp_path: Path
) -> None:
    """The model is small, so that the link is not what costs."""
    train(two_hosts, tmp_path, "--wrap", "--steps", "30", "--width", "64", "--fault", "forward")

    report = report_of(tmp_path)

    assert report["primary"] == "DD101"
    bandwidth = next(r for r in report["results"] if r["code"] == "DD201")
    assert bandwidth["outcome"] == "clean"
