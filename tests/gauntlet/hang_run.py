"""Runs the trainings that hang: `python -m tests.gauntlet.hang_run --part 1/4`, or `--only NAME`.

Each is started, and when nothing of it moves any more (or it says that it has begun), `ddpdoctor
diagnose --json` looks at it. A recorded one is then killed, and diagnose reads what it left. The
outcomes are kept in `.stamps/hangs.jsonl`, and HANGS.md is written from all that is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ddpdoctor.hang.processes import Processes
from tests.gauntlet.cases import BOTH, WRAPPED
from tests.gauntlet.hang_cases import (
    BY_HAND,
    HANG_CASES,
    HANGS_LEFT_OUT,
    PATIENT,
    SCRIPTS,
    Hang,
)
from tests.gauntlet.judge import Judged, Said, judge, loud, said_by_report
from tests.gauntlet.results import Outcome, keep, kept, totals_of, write_table
from tests.gauntlet.run import commit_of, held, parse_part
from tests.launching import ROOT, ddpdoctor, environment, finish, started, torchrun

BEGIN_SECONDS = 90  # importing torch, and coming to stand still, on a busy machine
DIAGNOSE_SECONDS = 40
STILL_SECONDS = 1.0  # looked at twice
STILL_SHARE = 0.05  # of a CPU; the recorder's own threads take less
NOTED_SECONDS = 6.0  # a recorded rank notes after five that it stands still
LEFT = "left"
KEPT = ROOT / ".stamps" / "hangs.jsonl"
TABLE = ROOT / "tests" / "gauntlet" / "HANGS.md"

_HEAD = """# What diagnose said of trainings that hang, or seem to

Written by `make gauntlet-hangs`. Each training is started by torchrun, or one process a rank by
hand, without ddpdoctor (plain) or with `ddpdoctor.wrap` (wrapped), and looked at when it stands
still. *left*: it was then killed, and diagnose read the record. Expectations are in
`hang_cases.py`. A row is right if the finding to read first has the code, blames the expected
ranks and its fix says what the report's did. One that is slow is right if it is told so and
nothing is found at warning or above.
"""


class DidNotHang(Exception):
    """The training ended, or went on; the message is its output."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    jobs = [
        (case, mode)
        for case in HANG_CASES
        for mode in case.modes
        if mode in options.mode and (not options.only or case.name in options.only)
    ]
    part, parts = options.part
    commit = commit_of()
    mine = jobs[part - 1 :: parts]
    with ThreadPoolExecutor(options.at_once) as pool:  # most of a hang is waiting
        for outcomes in pool.map(lambda job: _outcomes(*job, commit, options.keep), mine):
            for outcome in outcomes:
                keep(outcome, KEPT)
                print(_line(outcome), flush=True)
    places = [
        (case.name, mode)
        for case in HANG_CASES
        for mode in (*case.modes, *([LEFT] if case.left and WRAPPED in case.modes else []))
    ]
    outcomes = kept(KEPT, places)
    write_table(_HEAD, totals_of(outcomes, len(places)), outcomes, HANGS_LEFT_OUT, TABLE)
    return 0


def _line(one: Outcome) -> str:
    said = "right" if one.right else f"WRONG: {one.why}"
    return f"{one.case:28} {one.mode:8} {' '.join(one.found):12} {one.seconds:4.0f} s  {said}"


def _outcomes(case: Hang, mode: str, commit: str, keep_in: Path | None) -> list[Outcome]:
    load, began = os.getloadavg()[0], time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="gauntlet-") as folder:
            heard, left = hear(case, mode, Path(folder))
            if keep_in is not None:
                shutil.copytree(folder, keep_in / f"{case.name}-{mode}", dirs_exist_ok=True)
    except (DidNotHang, subprocess.TimeoutExpired) as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        heard = left = None
    seconds = round(time.monotonic() - began, 1)

    def outcome(named: str, said: list[Said] | None, judged: Judged, expected: str) -> Outcome:
        found = tuple(dict.fromkeys(one.code for one in loud(said or [], case.at_least)))
        return Outcome(
            case.name, case.report, named, expected, found, judged.right, judged.why,
            seconds, round(load, 1), commit,
        )  # fmt: skip

    expected = " or ".join([case.code or "nothing", *case.or_codes])
    found = [outcome(mode, heard, verdict(case, heard), expected)]
    if mode == WRAPPED and case.left:
        after = replace(case, or_codes=(*case.or_codes, *case.left), fix_word="")
        expected = " or ".join([case.code or "", *after.or_codes])
        found.append(outcome(LEFT, left, verdict(after, left), expected))
    return found


def hear(case: Hang, mode: str, folder: Path) -> tuple[list[Said] | None, list[Said] | None]:
    """What is said while it stands there, and of the record that it leaves."""
    changes = {"DDPDOCTOR_DIR": str(folder / "runs"), "DDPDOCTOR_REPORT": "0"}
    if mode == WRAPPED:
        changes["WITH_WRAP"] = "1"
    env = environment(PYTHONPATH=str(ROOT), **changes)
    with held(case.port), started(_command(case), folder, env) as process:
        _wait_until(lambda: _is_there(case, process))
        if mode == WRAPPED and case.left:
            time.sleep(NOTED_SECONDS)
        said = _diagnose("--pid", str(process.pid))
    runs = sorted((folder / "runs").glob("*")) if mode == WRAPPED else []
    return said, _diagnose(str(runs[0])) if runs and case.left else None


def _command(case: Hang) -> list[str]:
    script = SCRIPTS / f"{case.script}.py"
    if case.launcher == BY_HAND:
        by_hand = str(Path(__file__).with_name("by_hand.py"))
        return [sys.executable, by_hand, str(script), json.dumps(case.variables)]
    command = torchrun(script, ranks=case.ranks)
    if case.launcher == PATIENT:
        command.insert(command.index("--standalone"), "--monitor-interval=600")
    return command


def _diagnose(*arguments: str) -> list[Said] | None:
    done = finish(ddpdoctor("diagnose", "--json", *arguments), ROOT, seconds=DIAGNOSE_SECONDS)
    try:
        reports = json.loads(done.out)
    except json.JSONDecodeError:
        sys.stderr.write(done.out + done.err)
        return None
    said = []
    for report in reports if isinstance(reports, list) else [reports]:
        said += said_by_report(json.dumps(report)) or []
    return said


def verdict(case: Hang, said: list[Said] | None) -> Judged:
    """By the finding to read first."""
    if said is None:
        return Judged(False, "no report")
    first = sorted(said, key=lambda one: one.severity == "info")[:1]
    if case.at_least == "info" and any(one.severity != "info" for one in said):
        return Judged(False, f"false alarm: {first[0].code}")
    return judge(case, first)


def _is_there(case: Hang, process: subprocess.Popen[str]) -> bool:
    if case.begins:
        assert process.stdout is not None
        for line in process.stdout:
            if case.begins in line:
                time.sleep(2 * STILL_SECONDS)
                return True
        return True
    return all(_stands_still(case, process) for _ in range(2))


def _stands_still(case: Hang, process: subprocess.Popen[str]) -> bool:
    before = _cpu_seconds(process.pid)
    time.sleep(STILL_SECONDS)
    after = _cpu_seconds(process.pid)
    if process.poll() is not None:
        raise DidNotHang("".join(process.communicate(timeout=10))[-2000:])
    alive = case.ranks - case.dies
    used = [after[pid] - before[pid] for pid in after if pid in before]
    return len(used) == len(after) == alive and max(used) < STILL_SHARE * STILL_SECONDS


def _cpu_seconds(launcher: int) -> dict[int, float]:
    """Of the ranks, which have torch loaded."""
    processes = Processes()
    ranks = [stat.pid for stat in processes.all().values() if stat.parent == launcher]
    counted = {pid: processes.counters(pid) for pid in ranks if processes.has_torch(pid)}
    return {pid: each.cpu_s for pid, each in counted.items() if each is not None}


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BEGIN_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise DidNotHang("it did not come to stand still")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="K/N")
    parser.add_argument("--only", action="append", choices=[case.name for case in HANG_CASES])
    parser.add_argument("--mode", action="append", choices=BOTH)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="copy there what the trainings left")
    options = parser.parse_args(arguments)
    options.mode = options.mode or BOTH
    return options


if __name__ == "__main__":
    sys.exit(main())
