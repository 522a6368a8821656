"""The gauntlet's cases hold together, before anybody spends minutes on running them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.gauntlet.cases import BOTH, CASES, FAULTS, HEALTHY, LEFT_OUT, SCRIPTS, Case
from tests.gauntlet.judge import Said, judge, said_in_output

# The catalogue of findings, as far as the gauntlet's reports go.
CATALOGUE = (
    {f"DD{number}" for number in range(101, 110)}
    | {f"DD{number}" for number in range(201, 208)}
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


LATE_RANK_1 = Case("late", "H0", "mlp", code="DD503", culprits=(1,), fix_word="freeze")
ON_ALL = Case("all", "H0", "mlp", code="DD503", fix_word="freeze")
NOTHING = Case("nothing", "", "mlp")


@pytest.mark.parametrize(
    ("case", "said", "right"),
    [
        (LATE_RANK_1, Said("DD503", "error", (1,), "Freeze them."), True),
        (LATE_RANK_1, Said("DD503", "error", (0,), "Freeze them."), False),
        (LATE_RANK_1, Said("DD503", "error", (0, 1), "Freeze them."), False),
        (LATE_RANK_1, Said("DD503", "error", (1,), "Think about it."), False),
        (LATE_RANK_1, Said("DD503", "info", (1,), "Freeze them."), False),
        (LATE_RANK_1, Said("DD501", "error", (1,), "Freeze them."), False),
        (ON_ALL, Said("DD503", "error", (), "Freeze them."), True),
        (ON_ALL, Said("DD503", "error", (0, 1), "Freeze them."), True),
        (ON_ALL, Said("DD503", "error", (1,), "Freeze them."), False),
        (NOTHING, Said("DD503", "info", (1,), "Freeze them."), True),
        (NOTHING, Said("DD503", "warning", (1,), "Freeze them."), False),
    ],
)
def test_a_verdict_needs_code_culprits_and_fix(case: Case, said: Said, right: bool) -> None:
    assert judge(case, [said]).right is right


def test_silence_is_right_for_a_healthy_training_only() -> None:
    assert judge(NOTHING, []).right
    assert not judge(ON_ALL, []).right


def test_findings_are_heard_in_the_output_of_a_job() -> None:
    output = "rank 0 waits\n\nDD101 late-rank  error, certain, 2.2 s lost\n  fix  Rank 1 is slow.\n"
    (heard,) = said_in_output(output)
    assert (heard.code, heard.severity) == ("DD101", "error")
    assert said_in_output("clean: DD201 bandwidth-bound, DD301 input-bound") == []
    (warned,) = said_in_output("ddpdoctor: DD406 not-wrapped: rank 0 of 2 trains alone.")
    assert (warned.code, warned.severity) == ("DD406", "warning")
