"""What was measured of a network before a run: kept beside runs, read back, and foreign."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor import load_run
from ddpdoctor.baseline import (
    NETWORK_FILE,
    NetworkBaseline,
    host_labels,
    read_baseline,
    write_baseline,
)
from ddpdoctor.preflight.network import tournament
from tests.builders import StepTimes, simulate
from tests.link_builders import baseline
from tests.stored import store


def stored_run(folder: Path) -> Path:
    run = simulate(lambda rank, step: StepTimes(), hosts=("node0", "node1"))
    return store(run, folder / "ddpdoctor_runs" / "test" / "attempt-0")


def test_it_is_found_by_a_run_of_the_same_hosts(tmp_path: Path) -> None:
    attempt = stored_run(tmp_path)
    network = baseline()
    assert load_run(attempt).network is None

    write_baseline(network, tmp_path / "ddpdoctor_runs")

    assert load_run(attempt).network == network
    assert network.alpha_ms == pytest.approx(0.3)
    assert network.busbw_gb_per_s == pytest.approx(0.05)


@pytest.mark.parametrize(
    "other",
    [
        {"hosts": ("node0", "node2")},
        {"hosts": ("node1", "node0")},
        {"backend": "nccl"},
        {"world_size": 3, "hosts": ("node0", "node1", "node2")},
    ],
)
def test_that_of_another_launch_is_not_taken(tmp_path: Path, other: dict) -> None:
    attempt = stored_run(tmp_path)

    write_baseline(replace(baseline(), **other), tmp_path / "ddpdoctor_runs")

    assert load_run(attempt).network is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", b'{"backend": 3}', b"[" * 10_000, b"\xff" * 100,
        b'{"backend":"gloo","world_size":-1,"hosts":[],"interface":""}',
        b'{"backend":"gloo","world_size":2,"hosts":["a","b"],"interface":"",'
        b'"sizes":[{"nbytes":1,"seconds":NaN,"algbw_gb_per_s":1,"busbw_gb_per_s":1}]}',
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_left_out(tmp_path: Path, content: bytes) -> None:
    attempt = stored_run(tmp_path)
    (tmp_path / "ddpdoctor_runs" / NETWORK_FILE).write_bytes(content)

    assert load_run(attempt).network is None


def test_a_pipe_in_its_place_does_not_block(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / NETWORK_FILE)

    assert read_baseline((tmp_path,)) is None


def test_networks_of_one_host_name_are_told_apart() -> None:
    places = [("vm", "net:1"), ("vm", "net:1"), ("vm", "net:2"), ("other", "net:1")]
    assert host_labels(places) == ("vm", "vm", "vm/2", "other")


def test_ranks_of_a_host_are_named_together() -> None:
    network = NetworkBaseline("gloo", 4, ("a", "a", "b", "b"), "")
    assert network.ranks_on((0,)) == (0, 1)
    assert network.ranks_on((1, 3)) == (0, 1, 2, 3)


@given(st.integers(0, 17))
def test_in_a_tournament_all_meet_once_and_nobody_twice_a_round(players: int) -> None:
    rounds = list(tournament(range(players)))

    assert sorted(pair for pairs in rounds for pair in pairs) == list(
        combinations(range(players), 2)
    )
    for pairs in rounds:
        met = [player for pair in pairs for player in pair]
        assert len(met) == len(set(met))
    assert len(rounds) <= max(0, players)
