"""A handful of the gauntlet; `make gauntlet` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gauntlet.cases import CASES
from tests.gauntlet.run import REPORT_SECONDS, TRAINING_SECONDS, hear, verdict

pytestmark = pytest.mark.job

# one that runs through, one that raises, one that only repeats itself, and two without a fault
HANDFUL = (
    "calls-module",
    "dead-weights",
    "no-set-epoch",
    "healthy-convolutions",
    "healthy-accumulated",
)


@pytest.mark.timeout(TRAINING_SECONDS + REPORT_SECONDS + 30)
@pytest.mark.parametrize("name", HANDFUL)
def test_a_training_is_told_what_its_report_asked_for(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in CASES if case.name == name]
    judged = verdict(case, hear(case, case.modes[0], tmp_path))
    assert judged.right, judged.why
