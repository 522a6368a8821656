"""Runs the gauntlet: `python -m tests.gauntlet.run --part 1/4`, or `--only NAME`.

Each job has a limit and is reaped; what was found is kept in `.stamps/gauntlet.jsonl`, so that
parts may be run one by one, and RESULTS.md is written from all that is kept.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.gauntlet.cases import BOTH, CASES, PLAIN, SCRIPTS, Case
from tests.gauntlet.judge import LAUNCH, Judged, Said, judge, loud, said_by_report, said_in_output
from tests.gauntlet.results import Outcome, keep, kept, write
from tests.launching import ROOT, Finished, ddpdoctor, ddpdoctor_run, environment, finish, torchrun

TRAINING_SECONDS = 90  # ranks give up after 15 s; starting takes up to 30 s on a busy machine
REPORT_SECONDS = 30


@dataclass(frozen=True)
class Heard:
    """What a user sees of one training. `said` None: there is no report."""

    status: int
    said: list[Said] | None


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    jobs = [
        (case, mode)
        for case in CASES
        for mode in case.modes
        if mode in options.mode and (not options.only or case.name in options.only)
    ]
    part, parts = options.part
    commit = commit_of()
    for case, mode in jobs[part - 1 :: parts]:
        outcome = _outcome(case, mode, commit)
        keep(outcome)
        verdict = "right" if outcome.right else f"WRONG: {outcome.why}"
        print(f"{case.name:32} {mode:8} {outcome.seconds:4.0f} s  {verdict}", flush=True)
    write(kept())
    return 0


def _outcome(case: Case, mode: str, commit: str) -> Outcome:
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gauntlet-") as folder:
        heard = hear(case, mode, Path(folder))
    judged = verdict(case, heard)
    return Outcome(
        case=case.name,
        report=case.report,
        mode=mode,
        expected=" or ".join([case.code, *case.or_codes]) if case.code else "nothing",
        found=tuple(dict.fromkeys(one.code for one in loud(heard.said or [], "warning"))),
        right=judged.right,
        why=judged.why,
        seconds=round(time.monotonic() - began, 1),
        load=round(load, 1),
        commit=commit,
    )


def hear(case: Case, mode: str, folder: Path) -> Heard:
    """Run one training in the folder, and read what is said of it."""
    with held(case.port):
        done = train(case, mode, folder)
    reported = finish(ddpdoctor("report", "--json"), folder, environment(), REPORT_SECONDS)
    said = said_by_report(reported.out)
    if case.code and case.code.startswith(LAUNCH):
        said = (said or []) + said_in_output(done.out + done.err)
    return Heard(done.status, said)


def verdict(case: Case, heard: Heard) -> Judged:
    if heard.said is None:
        return Judged(False, f"no report; the training ended with status {heard.status}")
    if case.code is None and heard.status != 0:
        return Judged(False, f"the training ended with status {heard.status}")
    return judge(case, heard.said)


def train(case: Case, mode: str, folder: Path) -> Finished:
    script = SCRIPTS / f"{case.script}.py"
    launch = bool(case.code and case.code.startswith(LAUNCH))
    env = environment(DDPDOCTOR_REPORT="1" if launch else "0")
    if mode == PLAIN:
        command = ddpdoctor_run(script, ranks=case.ranks)
    else:
        command = torchrun(script, ranks=case.ranks)
        env["WITH_WRAP"] = "1"
    try:
        return finish(command, folder, env, TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        return Finished(-1, "", f"did not end within {TRAINING_SECONDS} s")


@contextmanager
def held(port: int | None) -> Iterator[None]:
    """Somebody else listens at the port."""
    if port is None:
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # it is held already
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def commit_of() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=parse_part, default=(1, 1), metavar="K/N")
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--mode", action="append", choices=BOTH)
    options = parser.parse_args(arguments)
    options.mode = options.mode or BOTH
    return options


def parse_part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text} is no part")
    return part, parts


if __name__ == "__main__":
    sys.exit(main())
