"""Logs with several tracebacks: in which call each rank was, and which of them came first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.diagnose_log import LogVerdict, judge_logs
from ddpdoctor.findings import Confidence
from tests.hang.test_logs import CLOSED, TABLE, judged, only, traceback

GAVE_UP = "RuntimeError: [/pytorch/gloo/buffer.cc:42] Timed out waiting 60000ms for recv operation"


def in_call(rank: int | str, line: int, call: str, error: str) -> str:
    text = traceback(rank, line, error).replace("_tensor.py", "distributed/distributed_c10d.py")
    return text.replace("in backward", f"in {call}")


def test_ranks_that_gave_up_in_different_calls(tmp_path: Path) -> None:
    """gloo's errors name no number: the lines tell that these calls do not belong together."""
    log = in_call(0, 31, "all_reduce", GAVE_UP) + "\n" + in_call(1, 44, "barrier", CLOSED)

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits, finding.victims) == ("DD904", (), (0, 1))
    assert "rank 0 gave up all_reduce at train.py:31" in finding.message
    assert "rank 1 lost the others in barrier at train.py:44" in finding.message


def test_the_one_that_stood_elsewhere_than_the_others(tmp_path: Path) -> None:
    parts = [in_call(rank, 31, "all_reduce", GAVE_UP) for rank in (0, 2, 3)]
    log = "\n".join([*parts, in_call(1, 44, "barrier", CLOSED)])

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits, finding.victims) == ("DD904", (1,), (0, 2, 3))
    assert [place.line for place in finding.where] == [44]


def test_ranks_without_a_prefix_that_gave_up_in_different_calls(tmp_path: Path) -> None:
    log = in_call("", 31, "all_reduce", GAVE_UP) + "\n" + in_call("", 44, "barrier", CLOSED)

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD904", ())
    assert "a rank that is not named gave up all_reduce at train.py:31" in finding.message


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2)])
def test_all_tracebacks_in_one_call_are_no_verdict(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    log = "\n".join(in_call(rank, 31, "all_reduce", GAVE_UP) for rank in ranks)

    verdict = judged(tmp_path, log)

    assert not verdict.findings
    reasons = [r.reason or "" for r in verdict.results if r.outcome is Outcome.SKIPPED]
    assert any("gave up all_reduce at train.py:31" in reason for reason in reasons)


def test_an_error_of_a_rank_that_is_not_named_comes_before_what_follows(tmp_path: Path) -> None:
    log = traceback("", 31, CLOSED) + "\n" + traceback("", 17, "ValueError: label 9")
    log += TABLE.format(other=1, first=0, status=1, why="To enable traceback see: …")

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD901", ())
    assert "a rank ended with ValueError at train.py:17" in finding.message
    assert "the launcher saw rank 0 end first" in finding.message
    assert "--log-dir" in finding.fix


def test_a_traceback_that_was_logged_and_survived_is_no_end(tmp_path: Path) -> None:
    log = traceback("", 17, "ValueError: odd image") + "\nstep 10 loss 0.1\n"

    assert judged(tmp_path, log).log.says_nothing


def test_the_last_words_of_a_log_are_an_end(tmp_path: Path) -> None:
    code, finding = only(judged(tmp_path, "step 10\n" + traceback("", 17, "ValueError: odd")))

    assert (code, finding.culprits) == ("DD901", ())


def two_logs(folder: Path, one: str, other: str) -> LogVerdict:
    for rank, text in enumerate((one, other)):
        (folder / f"rank{rank}.log").write_text(text)
    return judge_logs([folder])


def test_errors_in_two_logs_without_times_have_no_order(tmp_path: Path) -> None:
    errors = traceback("", 17, "ValueError: odd"), traceback("", 23, "KeyError: 'image'")

    code, finding = only(two_logs(tmp_path, *errors))

    assert (code, finding.culprits) == ("DD901", (0, 1))
    assert finding.confidence is Confidence.POSSIBLE
    assert "which came first the logs do not tell" in finding.message


@pytest.mark.parametrize(("seconds", "first"), [(("09", "05"), (1,)), (("05", "09"), (0,))])
def test_errors_in_two_logs_by_their_times(
    tmp_path: Path, seconds: tuple[str, str], first: tuple[int, ...]
) -> None:
    stamps = [f"2026-12-01 00:00:{each},120 ERROR root: failed\n" for each in seconds]
    errors = traceback("", 17, "ValueError: odd"), traceback("", 23, "KeyError: 'image'")

    code, finding = only(two_logs(tmp_path, stamps[0] + errors[0], stamps[1] + errors[1]))

    assert (code, finding.culprits) == ("DD901", first)


def test_times_before_each_line(tmp_path: Path) -> None:
    def stamped(second: int, text: str) -> str:
        return "\n".join(f"2026-12-01T00:00:0{second}.5Z {line}" for line in text.split("\n"))

    errors = traceback(0, 17, "ValueError: odd"), traceback(1, 23, "KeyError: 'image'")
    code, finding = only(two_logs(tmp_path, stamped(7, errors[0]), stamped(3, errors[1])))

    assert (code, finding.culprits) == ("DD901", (1,))
