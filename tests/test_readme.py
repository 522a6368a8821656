"""The README says what the program says."""

from __future__ import annotations

import re

import pytest

from ddpdoctor.checks import all_checks
from tests.launching import ROOT, ddpdoctor, finish

README = (ROOT / "README.md").read_text(encoding="utf-8")
HEADINGS = ("What it measures", "Why it matters", "What to do", "When it is wrong")


def between(mark: str) -> str:
    found = re.search(rf"<!-- {mark}:begin -->\n(.*?)<!-- {mark}:end -->", README, re.DOTALL)
    assert found is not None
    return found[1].strip()


def test_the_table_of_checks_is_the_one_that_explain_prints() -> None:
    printed = finish(ddpdoctor("explain", "--markdown"), ROOT)

    assert between("checks") == printed.out.strip()


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_every_check_explains_itself(check) -> None:
    positions = [check.explanation.find(f"\n{heading}\n") for heading in HEADINGS]

    assert -1 not in positions
    assert positions == sorted(positions)
    assert check.function.__module__.endswith("." + check.name.replace("-", "_"))
