"""DD909 gil-held."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.hang.snapshot import RankProcess
from tests.hang_builders import BUSY, at, codes, in_backward, only_finding, snapshot, user


def holding(rank: RankProcess) -> RankProcess:
    (thread,) = rank.threads
    return replace(rank, threads=(replace(thread, owns_gil=True),))


def test_a_native_call_that_keeps_the_lock() -> None:
    holder = holding(at(1, user(25, "lib.wait_for_device()")))

    code, finding = only_finding(snapshot(in_backward(0), holder))

    assert (code, finding.culprits, finding.victims) == ("DD909", (1,), (0,))
    assert "--native --pid 1001" in finding.fix
    assert "gil_scoped_release" in finding.fix


def test_a_computation_that_keeps_the_lock_is_busy() -> None:
    holder = holding(at(1, user(25, "pattern.match(text)"), movement=BUSY))

    assert codes(snapshot(in_backward(0), holder)) == ["DD906"]


def test_a_call_that_released_the_lock_is_a_missing_rank() -> None:
    assert codes(snapshot(in_backward(0), at(1, user(25, "time.sleep(9)")))) == ["DD903"]
