"""What others named is shown as text, and what a reader leaves unread is no error."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddpdoctor import output
from ddpdoctor.checks import Check, CheckResult, Outcome, run_check
from ddpdoctor.diagnose import Diagnosis, judge
from ddpdoctor.diagnose_text import render
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.report import Report
from ddpdoctor.terminal import Columns, said
from ddpdoctor.wording import printable
from tests.hang_builders import ALL_REDUCE, at, snapshot, user
from tests.launching import ROOT, finish


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_printable_is_one_line_that_steers_nothing(text: str) -> None:
    shown = printable(text)

    assert all(character.isprintable() or character == "\u00a0" for character in shown)
    assert printable(shown) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host é 漢 · …", "host é 漢 · …"),
        ("a\x1b[1mb\r\n", r"a\x1b[1mb\r\n"),
        ("\x9b\u202e\ud800", r"\x9b\u202e\ud800"),
        ("rank\udcff", r"rank\xff"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def hostile_snapshot(text: str):
    frame = replace(user(30, text, text), file=f"/home/{text}.py")
    seen = snapshot(
        at(0, *ALL_REDUCE, frame), at(1, frame, refusal=text, state="S"), at(2, *ALL_REDUCE, frame)
    )
    return replace(seen, host=text, job=replace(seen.job, run_id=text))


def diagnosis_of(seen) -> str:
    shown = io.StringIO()
    render(Diagnosis(judge(seen), seen), Console(file=shown, width=100), stacks=True)
    return shown.getvalue()


@pytest.mark.parametrize("text", ["[/nope]", "[bold]x[/bold]", "\x1b]0;t\x07", "a\nDD101 b"])
def test_a_diagnosis_shows_foreign_strings_as_text(text: str) -> None:
    shown = diagnosis_of(hostile_snapshot(text))

    assert printable(text) in shown.replace("\n", "")
    assert "\x1b" not in shown
    assert "\nDD101" not in shown


@pytest.mark.parametrize("width", [10, 30, 60, 200])
def test_a_table_that_does_not_fit_becomes_blocks(width: int) -> None:
    rows = (("0", "123456.7", "[/nope]" * 9), ("1", "7.5", ""))
    shown = io.StringIO()

    Console(file=shown, width=width).print(Columns(("rank", "ms", "at"), rows, frozenset({"at"})))

    lines = shown.getvalue().splitlines()
    assert "7.5" in shown.getvalue().split()
    assert ("rank: 0" in lines) == (width < 30)
    if width > 10:
        assert "123456.7" in shown.getvalue().split()


def test_text_is_text() -> None:
    assert said("[bold]x").plain == "[bold]x"


def crashing(code: str) -> CheckResult:
    def function(_subject: object):
        raise ValueError("\x1b[31mbroken")
        yield

    return run_check(Check(code, "broken", "", function), None)


FINDING = Finding(Severity.WARNING, Confidence.LIKELY, "slow", "fix")
INFO = replace(FINDING, severity=Severity.INFO)


@pytest.mark.parametrize(
    ("findings", "fail_on", "status"),
    [
        ((FINDING,), "warning", output.FINDINGS),  # a finding decides
        ((FINDING,), "error", output.INTERNAL_ERROR),
        ((INFO,), "warning", output.INTERNAL_ERROR),
        ((), "never", output.INTERNAL_ERROR),
    ],
)
def test_a_crashed_check_is_no_clean_run(
    findings: tuple[Finding, ...], fail_on: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    looked = CheckResult("DD998", "looked", Outcome.FINDINGS if findings else Outcome.CLEAN)
    report = Report("run", "r", (crashing("DD999"), replace(looked, findings=findings)))

    assert output.status_of(report, fail_on) == status

    said_so = capsys.readouterr().err
    assert ("check DD999 broken crashed" in said_so) == (status == output.INTERNAL_ERROR)
    assert "\x1b" not in said_so


@pytest.mark.parametrize(
    ("code", "status"), [("DD101", output.CLEAN), ("DD404", output.NO_VERDICT)]
)
def test_a_launch_check_alone_is_no_verdict(code: str, status: int) -> None:
    results = (
        CheckResult(code, "a", Outcome.CLEAN),
        CheckResult("DD301", "b", Outcome.SKIPPED, reason="few steps"),
    )

    assert output.status_of(Report("run", "r", results), "warning") == status


def test_lines_in_a_pipe_have_no_trailing_spaces() -> None:
    code = (
        "from ddpdoctor.terminal import Columns, text_console; "
        "text_console().print(Columns(('a', 'b'), (('1', 'long word'), ('2', 'x'))))"
    )

    done = finish([sys.executable, "-c", code], ROOT, seconds=30)

    assert done.out.splitlines()[1:] == ["1  long word", "2          x"]
