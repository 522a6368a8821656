"""The command line: what is printed, exit statuses, and what is not loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ddpdoctor import __version__
from ddpdoctor.checks import all_checks, trace_checks
from ddpdoctor.events import FACTS_SUFFIX, End, EndKind, Phase
from ddpdoctor.samples import sample_folder
from tests import dump_builders as dumps
from tests.launch_builders import TIMED_OUT, WAITS, called, noted
from tests.launching import ROOT, Finished, ddpdoctor, environment, finish
from tests.test_writer_and_tracefile import write_run


def call(*arguments: str, cwd: Path = ROOT) -> Finished:
    return finish(ddpdoctor(*arguments), cwd, seconds=30)


@pytest.mark.parametrize("statement", ["import ddpdoctor", "import ddpdoctor.cli"])
def test_neither_torch_nor_pandas_is_loaded_at_import(statement: str) -> None:
    heavy = "('torch', 'pandas', 'numpy', 'dash')"
    code = f"{statement}, sys; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_help_names_the_commands() -> None:
    done = call("--help")

    assert done.status == 0
    for command in ("report", "run", "explain", "runs"):
        assert f"\n  {command} " in done.out


def test_version() -> None:
    assert call("--version").out.strip() == f"ddpdoctor, version {__version__}"


def test_explain_is_the_docstring_of_the_check() -> None:
    for wanted in ("DD101", "dd101", "late-rank"):
        done = call("explain", wanted)
        assert done.status == 0
        assert done.out.startswith("DD101 late-rank: ")


def test_explain_lists_all_checks() -> None:
    lines = call("explain").out.splitlines()

    assert [line.split()[0] for line in lines] == [check.code for check in all_checks()]


def test_an_unknown_check_is_one_sentence() -> None:
    done = call("explain", "DD999")

    assert done.status == 2
    assert done.err.startswith("ddpdoctor: no check is called 'DD999'; did you mean dd9")
    assert "did you mean late-rank" in call("explain", "late-ranks").err


@pytest.mark.parametrize(
    "arguments",
    [("report", "--fail-on", "sometimes"), ("report", "--what"), ("rapport",), ("run",)],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    done = call(*arguments)

    assert done.status == 2
    assert "Traceback" not in done.err
    assert done.err


def test_no_run_here_is_one_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    done = call("report", cwd=tmp_path)

    assert done.status == 2
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("ddpdoctor: no recorded run in ")
    assert "ddpdoctor.wrap" in line


def test_runs_are_listed_with_what_their_headers_tell(tmp_path: Path) -> None:
    write_run(tmp_path)
    broken = tmp_path / "run-2" / "attempt-0"
    broken.mkdir(parents=True)
    (broken / "rank00000.ddt").write_bytes(b"garbage")
    listed = finish(ddpdoctor("runs", "--json"), ROOT, environment(DDPDOCTOR_DIR=str(tmp_path)), 30)

    first, second = json.loads(listed.out)

    assert (first["run"], first["ranks"], first["world_size"]) == ("run-1", 2, 2)
    assert (second["run"], second["ranks"], second["state"]) == ("run-2", None, "unreadable")


@pytest.mark.parametrize(
    ("status", "state"), [(0, "ended"), (3, "failed")], ids=["as it should", "by a status"]
)
def test_a_run_in_which_a_rank_failed_is_listed_so(status: int, state: str, tmp_path: Path) -> None:
    _, file = write_run(tmp_path)
    end = End(EndKind.EXIT, 0, 1, Phase.BETWEEN, status=status)
    with file.with_suffix(FACTS_SUFFIX).open("ab") as facts:
        facts.write(b'\n{"fact": "end", "data": %b}\n' % msgspec.json.encode(end))
        facts.write(b'{"fact": "cost", "data": {"hooks_ns": 1, "steps": 1}}\n')

    listed = finish(ddpdoctor("runs", "--json"), ROOT, environment(DDPDOCTOR_DIR=str(tmp_path)), 30)

    assert [run["state"] for run in json.loads(listed.out)] == [state]


@pytest.mark.parametrize("content", [b"", b"garbage", b"DDPDOC\x00\x01" + b"\xff" * 100])
def test_unreadable_rank_files_are_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank00000.ddt").write_bytes(content)

    done = call("report", str(tmp_path))

    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "rank00000.ddt" in line


def test_a_run_without_steps_has_no_verdict(tmp_path: Path) -> None:
    """Never 0 without a measurement: environment-drift alone needs two ranks."""
    write_run(tmp_path)[1].unlink()

    done = call("report", str(tmp_path / "run-1"))

    assert done.status == 2
    assert "No whole step was recorded" in done.out
    assert "no verdict on this run: no whole step was recorded on all ranks" in done.err


def test_the_report_object_has_each_check_once(tmp_path: Path) -> None:
    write_run(tmp_path)

    done = call("report", str(tmp_path / "run-1"), "--json")

    report = json.loads(done.out)
    assert report["schema_version"] == 1
    assert report["subject"] == "run"
    assert report["primary"] is None
    assert [result["code"] for result in report["results"]] == [c.code for c in trace_checks()]
    assert all(result["reason"] for result in report["results"] if result["outcome"] == "skipped")


def test_diagnose_takes_a_recorded_run() -> None:
    done = call("diagnose", str(sample_folder("hang")))

    assert done.status == 1
    assert "DD903 missing-rank" in done.out
    assert "by the record of run" in done.out

    assert call("diagnose", str(sample_folder("healthy"))).status == 0


def test_diagnose_takes_dumps(tmp_path: Path) -> None:
    done = [dumps.call(1, done=True)]
    hung = dumps.write(tmp_path / "hung", {0: [*done, dumps.call(2)], 1: done})
    quiet = dumps.write(tmp_path / "quiet", {0: done, 1: done})

    said = call("diagnose", str(hung), "--json")
    report = json.loads(said.out)
    assert (said.status, report["subject"], report["primary"]) == (1, "hang", "DD903")
    files = [str(path) for path in hung.iterdir()]
    assert json.loads(call("diagnose", *files, "--json").out)["primary"] == "DD903"

    silent = call("diagnose", str(quiet))
    assert silent.status == 2
    assert "No verdict" in silent.out
    assert "nothing was pending on ranks 0 and 1" in silent.out


def test_diagnose_says_what_is_wrong_with_its_arguments(tmp_path: Path) -> None:
    for arguments, reason in (
        ([str(tmp_path)], "neither a recorded run nor dumps"),
        ([str(tmp_path / "absent")], "cannot be read"),
        ([str(tmp_path), "--pid", "1"], "not both"),
    ):
        done = call("diagnose", *arguments)
        assert done.status == 2
        assert reason in done.err
        assert "Traceback" not in done.err


def test_diagnose_of_dumps_loads_neither_torch_nor_pandas(tmp_path: Path) -> None:
    folder = dumps.write(tmp_path, {0: [dumps.call(1)], 1: [dumps.call(1)]})
    code = (
        "import sys; from ddpdoctor.diagnose_left import diagnose_left; from pathlib import Path; "
        f"diagnose_left([Path({str(folder)!r})]); "
        "print([n for n in ('torch', 'pandas', 'numpy', 'pickle') if n in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_a_launch_that_failed_is_reported_on_and_diagnosed(tmp_path: Path) -> None:
    launch = tmp_path / "ddpdoctor_runs" / "a-launch"
    noted(launch, *(called(0, pid=pid, call=TIMED_OUT) for pid in (5, 6)))

    shown, short = (call("report", *more, cwd=tmp_path) for more in ((), ("--short",)))
    as_json = call("report", "a-launch", "--json", cwd=tmp_path)
    diagnosed = call("diagnose", "ddpdoctor_runs/a-launch", cwd=tmp_path)

    assert [each.status for each in (shown, short, as_json, diagnosed)] == [1, 1, 1, 1]
    assert shown.out.startswith(
        "ddpdoctor · launch a-launch · 0 of 2 processes joined a group of 2 ranks at node0:29500"
    )
    assert "skipped: DD402" in shown.out
    assert "skipped" not in short.out
    assert json.loads(as_json.out)["primary"] == "DD401"
    assert diagnosed.out.startswith("2 processes claim rank 0")


def test_a_launch_that_says_nothing_has_no_verdict(tmp_path: Path) -> None:
    launch = tmp_path / "ddpdoctor_runs" / "a-launch"
    noted(launch, called(0, call=WAITS | {"waited_s": 3.0}))

    done = call("report", cwd=tmp_path)

    assert done.status == 2
    assert "no verdict on this launch: some ranks have not joined" in done.err


def test_a_launch_without_a_model_is_no_run_to_load(tmp_path: Path) -> None:
    noted(tmp_path / "ddpdoctor_runs" / "a-launch", called(0), called(1))

    reported = call("report", cwd=tmp_path)
    shown = call("dashboard", "ddpdoctor_runs/a-launch", cwd=tmp_path)

    assert reported.status == 0
    assert "recorded no DistributedDataParallel model" in reported.out
    assert shown.status == 2
    assert "`ddpdoctor report` judges it" in shown.err
