"""The gauntlet's cases hold together, before anybody spends minutes on running them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.gauntlet.cases import BOTH, CASES, FAULTS, HEALTHY, LEFT_OUT, SCRIPTS, Case
from tests.gauntlet.hang_cases import BY_HAND, HANG_CASES, HANGS, HANGS_LEFT_OUT, SLOW, Hang
from tests.gauntlet.hang_cases import SCRIPTS as HANGING
from tests.gauntlet.hang_run import verdict as hang_verdict
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
MOST_RANKS = 4
FEWEST_HANGS, FEWEST_SLOW = 20, 5
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


def test_each_hanging_training_belongs_to_a_case() -> None:
    assert {case.script for case in HANG_CASES} == {path.stem for path in HANGING.glob("*.py")}
    names = Counter(case.name for case in (*CASES, *HANG_CASES))
    assert [name for name, times in names.items() if times > 1] == []
    assert len(HANGS) >= FEWEST_HANGS
    assert len(SLOW) >= FEWEST_SLOW


@pytest.mark.parametrize("case", HANG_CASES, ids=lambda case: case.name)
def test_a_hang_is_expected_by_a_code_of_the_catalogue(case: Hang) -> None:
    assert {case.code, *case.or_codes, *case.left} <= CATALOGUE
    assert case.ranks <= MOST_RANKS
    assert (len(case.variables) > 0) == (case.launcher == BY_HAND)
    assert all(rank < max(case.ranks, 3) for rank in case.culprits or ())
    assert not {case.report} & set(HANGS_LEFT_OUT)
    re.compile(case.fix_word)
    compile((HANGING / f"{case.script}.py").read_text(encoding="utf-8"), case.script, "exec")


def test_a_hang_is_judged_by_the_finding_to_read_first() -> None:
    case = Hang("gone", "H0", "images", code="DD902", culprits=(1,), fix_word="pad")
    right, other = Said("DD902", "error", (1,), "Pad."), Said("DD904", "error", (1,), "Pad.")
    assert hang_verdict(case, [right, other]).right
    assert not hang_verdict(case, [other, right]).right
    assert not hang_verdict(case, None).right


def test_a_slow_training_that_is_called_a_hang_is_wrong() -> None:
    case = Hang("slow", "", "tokenise", code="DD906", culprits=None, at_least="info")
    assert hang_verdict(case, [Said("DD906", "info", (), "")]).right
    assert not hang_verdict(case, [Said("DD903", "error", (0,), "")]).right
