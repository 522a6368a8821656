"""Stacks written in C, at SIGTERM and where Python's lock is kept; and that signals stay whose."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from ddpdoctor.factsfile import read_facts
from ddpdoctor.laststacks import LastStacks, read_last_stacks
from tests.launching import ROOT, environment, finish

# One process that loads torch, and a fork of it for each script, in a folder of its own.
RUN_ALL = """
import ctypes, faulthandler, json, os, signal, sys, threading, time, traceback
from pathlib import Path
from ddpdoctor.recorder import backup
from ddpdoctor.recorder.facts import FactsFile

def begin():
    global made
    made = backup.Backup(Path("rank00000.stacks.txt"), FactsFile(Path("rank00000.facts.jsonl")))

def run(name, script):
    os.mkdir(name)
    os.chdir(name)
    status = 0
    try:
        exec(compile(script, name + ".py", "exec"), globals())
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 99
    os._exit(status)

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a parent under nohup has it ignored
children = {}
for name, script in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        run(name, script)
    children[name] = child
ended = {name: os.waitpid(child, 0)[1] for name, child in children.items()}
print(json.dumps({name: os.waitstatus_to_exitcode(status) for name, status in ended.items()}))
"""
TERMINATE = """
def work():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
work()
"""
EXITS_7 = "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))\n"
WATCHED = """
backup.SILENCE_S, backup.PUT_OFF_EVERY_S = 2, 0.1
begin()
def sentinel():
    while True:
        made.put_off()
        time.sleep(0.05)
threading.Thread(target=sentinel, daemon=True).start()
time.sleep(0.3)
def native():
    return ctypes.PyDLL(None).sleep(4)
"""
FORKS = """
begin()
child = os.fork()
if child == 0:
    Path("child").touch()
    time.sleep(20)
while not Path("child").exists():
    time.sleep(0.01)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
made.close()
"""
HANG_UP = TERMINATE.replace("SIGTERM", "SIGHUP")
SCRIPTS = {
    "hangup": "begin()" + HANG_UP,
    "nohup": "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nbegin()" + HANG_UP,
    "hangup-closed": "begin()\nmade.close()" + HANG_UP,
    "default": "begin()" + TERMINATE,
    "handled-before": EXITS_7 + "begin()" + TERMINATE,
    "handled-later": "begin()\n" + EXITS_7 + TERMINATE,
    "ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nbegin()" + TERMINATE,
    "somebody-elses": "own = open('own', 'w')\nfaulthandler.register(signal.SIGTERM, own)\nbegin()"
    + TERMINATE,
    "closed": "begin()\nmade.close()" + TERMINATE,
    "closed-handled-later": "begin()\n" + EXITS_7 + "made.close()" + TERMINATE,
    "forks": FORKS,
    "kept": WATCHED + "os.system(f'(sleep 3; kill -9 {os.getpid()}) &')\nnative()",
    "went-on": WATCHED + "seconds_left = native()\ntime.sleep(0.5)\nmade.close()\n"
    "sys.exit(seconds_left)",
    "runs": "own = open('own', 'w')\nfaulthandler.dump_traceback_later(2, file=own)\n"
    + WATCHED
    + "time.sleep(2.5)\nmade.close()",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backup")


@pytest.fixture(scope="module")
def statuses(folder: Path) -> dict[str, int]:
    """How each script ended, all run side by side."""
    scripts = {name: textwrap.dedent(script) for name, script in SCRIPTS.items()}
    command = [sys.executable, "-c", RUN_ALL, json.dumps(scripts)]
    done = finish(command, folder, environment(PYTHONPATH=str(ROOT)))
    assert done.status == 0, done.err
    ended: dict[str, int] = json.loads(done.out)
    assert 99 not in ended.values(), done.err
    return ended


def stacks(folder: Path) -> LastStacks:
    return read_last_stacks(folder / "rank00000.stacks.txt")


@pytest.mark.parametrize(
    ("script", "status", "noted"),
    [
        ("default", -signal.SIGTERM, True),
        ("handled-before", 7, True),
        ("handled-later", 7, False),
        ("ignored", 0, False),
        ("somebody-elses", 0, False),
        ("closed", -signal.SIGTERM, False),
        ("closed-handled-later", 7, False),
    ],
)
def test_sigterm_ends_the_process_as_without_us(
    script: str, status: int, noted: bool, folder: Path, statuses: dict[str, int]
) -> None:
    assert statuses[script] == status
    at_sigterm = stacks(folder / script).at_sigterm
    assert (at_sigterm is not None) == noted
    if at_sigterm is not None:
        assert at_sigterm[0].function == "work"


@pytest.mark.parametrize(
    ("script", "status", "noted"),
    [("hangup", -signal.SIGHUP, True), ("nohup", 0, False), ("hangup-closed", -1, False)],
)
def test_sighup_is_told_from_sigterm_and_ends_the_process_as_without_us(
    script: str, status: int, noted: bool, folder: Path, statuses: dict[str, int]
) -> None:
    seen = stacks(folder / script)

    assert statuses[script] == status
    assert (seen.at_sighup is not None) == noted
    assert seen.at_sigterm is None


def test_sigterm_in_a_forked_child_is_none_of_ours(folder: Path, statuses: dict[str, int]) -> None:
    assert statuses["forks"] == 0
    assert not (folder / "forks" / "rank00000.stacks.txt").exists()


def test_where_the_gil_is_kept_the_stacks_are_written(
    folder: Path, statuses: dict[str, int]
) -> None:
    assert statuses["kept"] == -signal.SIGKILL
    *_, main_thread = stacks(folder / "kept").stuck
    assert main_thread[0].function == "native"


def test_when_python_goes_on_it_becomes_a_note_and_the_file_goes(
    folder: Path, statuses: dict[str, int]
) -> None:
    assert statuses["went-on"] == 0  # no signal of ours cut the native call short
    assert not (folder / "went-on" / "rank00000.stacks.txt").exists()
    (note,) = read_facts(folder / "went-on" / "rank00000.facts.jsonl").notes
    assert note.startswith("Python could not run for ")
    assert note.endswith(" in native")


def test_python_that_runs_writes_nothing_and_the_users_own_timer_stays(
    folder: Path, statuses: dict[str, int]
) -> None:
    assert statuses["runs"] == 0
    assert "Timeout" in (folder / "runs" / "own").read_text()
    assert read_facts(folder / "runs" / "rank00000.facts.jsonl").notes == []
    assert not (folder / "runs" / "rank00000.stacks.txt").exists()
