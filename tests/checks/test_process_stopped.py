"""DD910 process-stopped."""

from __future__ import annotations

from ddpdoctor.findings import Confidence
from tests.hang_builders import at, codes, in_backward, only_finding, snapshot, user


def test_a_stopped_rank_and_how_to_let_it_go_on() -> None:
    stopped = at(1, user(30), state="T")

    code, finding = only_finding(snapshot(in_backward(0), stopped))

    assert (code, finding.confidence) == ("DD910", Confidence.CERTAIN)
    assert (finding.culprits, finding.victims) == ((1,), (0,))
    assert "kill -CONT 1001" in finding.fix


def test_a_debugger_is_named() -> None:
    _, finding = only_finding(snapshot(in_backward(0), at(1, user(30), state="t")))

    assert "debugger" in finding.message


def test_a_sleeping_rank_is_not_stopped() -> None:
    assert codes(snapshot(in_backward(0), at(1, user(25, "sleep()")))) == ["DD903"]
