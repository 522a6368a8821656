"""What holds for all hang checks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ddpdoctor.checks import all_checks, find_check, hang_checks, launch_checks, trace_checks

HEADINGS = ("What it measures", "Why it matters", "What to do", "When it is wrong")


def test_hang_and_trace_checks_are_kept_apart() -> None:
    hang = {check.code for check in hang_checks()}
    trace = {check.code for check in trace_checks()}

    assert {"DD901", "DD902", "DD903", "DD906", "DD907", "DD908", "DD910"} <= hang
    launch = {check.code for check in launch_checks()}
    assert all(code.startswith(("DD4", "DD9")) for code in hang)  # a start can hang, too
    both = {"DD404", "DD405", "DD901", "DD902", "DD903", "DD904", "DD907", "DD908", "DD911"}
    assert hang & trace == both  # seen while it hangs, or in the record
    assert [check.code for check in all_checks()] == sorted(hang | trace | launch)


@pytest.mark.parametrize("check", hang_checks(), ids=lambda check: check.code)
def test_its_explanation_has_all_parts(check) -> None:
    parts = [check.explanation.find(f"\n{heading}\n") for heading in HEADINGS]

    assert -1 not in parts
    assert parts == sorted(parts)
    assert find_check(check.name) is check


def test_diagnosing_loads_neither_torch_nor_what_draws_or_computes_tables() -> None:
    code = (
        "import sys; from ddpdoctor import diagnose, diagnose_text, checks; checks.hang_checks(); "
        "heavy = {'torch', 'numpy', 'pandas', 'plotly', 'dash', 'msgspec'}; "
        "sys.stdout.write(', '.join(heavy & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == 0
