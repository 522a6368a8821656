"""How ranks end: each end is noted or not, the record is whole, and nothing ends otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddpdoctor import analyze, load_run
from ddpdoctor.checks import CheckResult, run_checks
from ddpdoctor.events import EndKind, Kind, Op, Phase
from ddpdoctor.tracefile import RankTrace, Run
from tests.launching import PROGRAMS, Finished, ddpdoctor, finish, torchrun
from tests.ranks import finish_ranks

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]

PROGRAM = PROGRAMS / "ends_differently.py"
WAYS = ("exception", "exit", "os._exit", "SIGTERM", "handled-SIGTERM", "SIGHUP", "SIGKILL",
        "returned")  # fmt: skip
STATUS = {"exception": 1, "exit": 3, "os._exit": 4, "SIGTERM": -15, "handled-SIGTERM": 5,
          "SIGHUP": -1, "SIGKILL": -9, "returned": 0}  # fmt: skip
STEPS = 7


def line_of(text: str, program: Path = PROGRAM) -> int:
    lines = program.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def recorded(folder: Path) -> Run:
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    return load_run(run)


def result(run: Run, code: str) -> CheckResult:
    return next(each for each in run_checks(analyze(run)) if each.code == code)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Finished], dict[str, RankTrace]]:
    """One job whose ranks end in all of the ways, and its record by way."""
    folder = tmp_path_factory.mktemp("ends")
    done = finish_ranks(PROGRAM, list(WAYS), folder)
    return done, dict(zip(WAYS, recorded(folder).ranks, strict=True))


Ended = tuple[list[Finished], dict[str, RankTrace]]


def test_every_rank_ends_as_without_us(ended: Ended) -> None:
    """The statuses are those of the plain program; see the control below."""
    done, _ = ended

    assert {way: each.status for way, each in zip(WAYS, done, strict=True)} == STATUS


@pytest.mark.long
def test_the_statuses_that_are_expected_are_those_of_the_plain_program(tmp_path: Path) -> None:
    """SIGTERM and handled SIGTERM, which we stand in the way of; the others are Python's own.

    The script ends by the signal, so torch's abort at exit does not come.
    """
    plain = finish_ranks(PROGRAM, ["SIGTERM", "handled-SIGTERM"], tmp_path, DDPDOCTOR_DISABLE="1")

    assert [each.status for each in plain] == [STATUS["SIGTERM"], STATUS["handled-SIGTERM"]]


def test_ends_are_noted_with_place_and_masked_message(ended: Ended) -> None:
    _, ranks = ended
    end = ranks["exception"].end
    assert end is not None
    assert (end.kind, end.error, end.step) == (EndKind.EXCEPTION, "ValueError", STEPS)
    assert end.site is not None
    assert (end.site.line, end.site.function) == (line_of("raise ValueError"), "end")
    assert end.message == "no label 11 at https://(masked)@host, asked with api_token=(masked)"
    for way, kind in (("exit", EndKind.EXIT), ("handled-SIGTERM", EndKind.EXIT)):
        noted = ranks[way].end
        assert noted is not None
        assert (noted.kind, noted.status) == (kind, STATUS[way])
    returned = ranks["returned"].end
    assert returned is not None
    assert returned.kind is EndKind.RETURNED
    assert not returned.failed


def test_what_nobody_can_note_leaves_no_end_and_sigterm_its_stack(ended: Ended) -> None:
    _, ranks = ended
    for way in ("os._exit", "SIGTERM", "SIGHUP", "SIGKILL"):
        assert ranks[way].end is None
        assert not ranks[way].closed
    for way in ("SIGTERM", "handled-SIGTERM"):
        stack = ranks[way].last_stacks.at_sigterm
        assert stack is not None
        assert (stack[0].function, stack[0].line) == ("end", line_of("signal.raise_signal("))
    hangup = ranks["SIGHUP"].last_stacks
    assert hangup.at_sighup is not None
    assert hangup.at_sighup[0].line == line_of("signal.raise_signal(")
    assert [hangup.at_sigterm, ranks["SIGTERM"].last_stacks.at_sighup] == [None, None]
    assert not ranks["SIGKILL"].last_stacks.by_signal
    assert ranks["returned"].last_stacks.at_sigterm is None


def test_the_record_of_each_is_whole_up_to_its_end(ended: Ended) -> None:
    """All steps, the collectives of each, and the last forward, however the rank ended."""
    _, ranks = ended
    for trace in ranks.values():
        detail = trace.detail
        steps = detail[detail["kind"] == Kind.STEP]
        assert list(steps["step"]) == list(range(STEPS))
        assert list(trace.steps["step"]) == list(range(STEPS))
        calls = detail[(detail["kind"] == Kind.COLLECTIVE) & (detail["code"] == Op.BARRIER)]
        assert len(calls) == 1
        forwards = detail[(detail["kind"] == Kind.SPAN) & (detail["code"] == Phase.FORWARD)]
        assert len(forwards) == STEPS + 1
        assert (forwards["end_ns"] > 0).all()


def test_a_thread_that_dies_is_a_note(ended: Ended) -> None:
    _, ranks = ended

    (note,) = ranks["returned"].notes
    assert note.startswith("thread uploader ended by ZeroDivisionError at ends_differently.py:")


def test_a_rank_that_goes_without_a_word_is_the_cause_of_the_others_errors(tmp_path: Path) -> None:
    """The pending collective of the one that is left is in the record, too."""
    killed, waiting = finish_ranks(PROGRAM, ["SIGKILL", "goes-on"], tmp_path)
    assert (killed.status, waiting.status) == (-9, 1)

    (finding,) = result(recorded(tmp_path), "DD901").findings

    assert (finding.culprits, finding.victims) == ((0,), (1,))
    assert finding.message.startswith(f"rank 0 went without a word in step {STEPS + 1}")
    assert finding.confidence == "likely"


@pytest.mark.long
def test_a_spawned_rank_that_raises_in_backward_is_named(tmp_path: Path) -> None:
    """torch.multiprocessing catches the exception and ends the process by `sys.exit(1)`."""
    program = PROGRAMS / "ends_in_backward.py"
    done = finish([sys.executable, str(program), str(tmp_path / "store")], tmp_path)
    assert done.status == 1

    report = json.loads(finish(ddpdoctor("report", "--json"), tmp_path).out)

    assert report["primary"] == "DD901"
    (finding,) = next(each for each in report["results"] if each["code"] == "DD901")["findings"]
    assert finding["culprits"] == [1]
    assert finding["where"][0]["line"] == line_of("raise KeyError", program)
    assert "ended with KeyError at ends_in_backward.py:" in finding["message"]
    end = recorded(tmp_path).ranks[1].end
    assert end is not None
    assert (end.phase, end.step) == (Phase.BACKWARD, 11)


@pytest.mark.long
def test_who_is_waited_for_until_the_timeout_is_named_with_its_line(tmp_path: Path) -> None:
    """torchrun ends it by SIGTERM then, and with it everything that only a look could tell."""
    program = PROGRAMS / "waits_in_vain.py"
    assert finish(torchrun(program, ranks=3), tmp_path).status == 1

    run = recorded(tmp_path)
    (finding,) = result(run, "DD913").findings

    assert finding.culprits == (1,)
    assert set(finding.victims) <= {0, 2}
    assert finding.where[0].line == line_of("time.sleep(60)", program)
    assert finding.where[0].function == "evaluate"
    assert result(run, "DD901").findings == ()
    stall = run.ranks[1].stall
    assert stall is not None
    assert (stall.step, stall.pending) == (13, ())
    assert stall.site is not None
    assert stall.site.function == "evaluate"
