"""The gauntlet's cases hold together, before anybody spends minutes on running them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.gauntlet.cases import BOTH, CASES, FAULTS, HEALTHY, LEFT_OUT, SCRIPTS, Case

# The catalogue of findings, as far as the gauntlet's reports go.
CATALOGUE = (
    {f"DD{number}" for number in range(201, 208)}
    | {f"DD{number}" for number in range(301, 309)}
    | {f"DD{number}" for number in range(401, 410)}
    | {f"DD{number}" for number in range(501, 511)}
    | {f"DD{number}" for number in range(901, 914)}
)
FEWEST_HEALTHY = 20  # one false alarm among these is five in a hundred


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_has_a_script_that_compiles(case: Case) -> None:
    source = (SCRIPTS / f"{case.script}.py").read_text(encoding="utf-8")
    compile(source, case.script, "exec")
    assert "destroy_process_group()" in source
    assert "WITH_WRAP" in source
    assert case.modes
    assert set(case.modes) <= set(BOTH)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_fault_is_expected_by_a_code_of_the_catalogue(case: Case) -> None:
    assert case.code is not None
    assert {case.code, *case.or_codes} <= CATALOGUE
    assert all(rank < case.ranks for rank in case.culprits or ())
    re.compile(case.fix_word)


def test_every_script_belongs_to_a_case() -> None:
    assert {case.script for case in CASES} == {path.stem for path in SCRIPTS.glob("*.py")}


def test_there_are_enough_healthy_trainings() -> None:
    assert len({case.script for case in HEALTHY}) >= FEWEST_HEALTHY
    assert all(case.code is None for case in HEALTHY)


def test_a_report_is_either_tried_or_left_out_with_a_reason() -> None:
    assert not {case.report for case in CASES} & set(LEFT_OUT)
    assert all(LEFT_OUT.values())
