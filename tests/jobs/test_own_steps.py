"""A loop with an optimizer of its own, whose script marks the steps and names what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor import analyze, load_run
from tests.jobs.test_recording import report_of
from tests.launching import PROGRAMS, ddpdoctor, environment, finish, finish_unrecorded, torchrun
from tests.programs.own_steps import LOGGING_MS, STEPS, UPDATE_MS

pytestmark = pytest.mark.job

PROGRAM = PROGRAMS / "own_steps.py"


def test_steps_end_where_the_script_says_and_spans_have_their_names(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAM), tmp_path)
    assert done.status == 0, done.err

    _, report = report_of(tmp_path, "--fail-on", "never")

    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    tables = analyze(load_run(run)).tables
    for rank in range(2):
        own = tables.steps[tables.steps["rank"] == rank]
        assert own["sync"].tolist() == list(range(1, STEPS + 1))
        logging = tables.named[(tables.named["rank"] == rank) & (tables.named["name"] == 2)]
        # The last thing in each step, and no step is left over at the end.
        after = own["end_ns"].to_numpy() - logging["end_ns"].to_numpy()
        assert (after >= 0).all()
        assert (own["begin_ns"].to_numpy()[1:] <= logging["begin_ns"].to_numpy()[1:]).all()
    named = {named["name"]: named["ranks"] for named in report["time"]["named"]}
    assert list(named) == ["update", "[red]logging[/red]"]
    for of_rank in named["update"]:
        assert of_rank["ms"] >= UPDATE_MS
    for of_rank in named["[red]logging[/red]"]:
        assert LOGGING_MS <= of_rank["ms"] < UPDATE_MS + LOGGING_MS
    for of_rank in report["time"]["ranks"]:
        assert of_rank["between_ms"] >= UPDATE_MS + LOGGING_MS
        assert of_rank["h2d_ms"] is None
    text = finish(ddpdoctor("report"), tmp_path).out
    assert "span [red]logging[/red]: rank 0" in text


def test_marks_stay_in_a_script_that_is_not_recorded(tmp_path: Path) -> None:
    done = finish_unrecorded(torchrun(PROGRAM), tmp_path, environment(DDPDOCTOR_DISABLE="1"))

    assert done.status == 0, done.err
    assert not (tmp_path / "ddpdoctor_runs").exists()
