"""Starts real jobs for tests: every wait has a limit and every process is reaped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "sample_traces" / "programs" / "train.py"
PROGRAMS = Path(__file__).parent / "programs"
JOB_SECONDS = 90
TRIES = 12
TORCHS_ABORT = "terminate called without an active exception"
_JOB_VARIABLE = "TEST_JOB_OF_DDPDOCTOR"


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    status: int
    out: str
    err: str


def torchrun(program: Path, *arguments: str, ranks: int = 2) -> list[str]:
    """A torchrun command line on this host, with a port of its own."""
    return [*_torchrun(ranks), str(program), *arguments]


def ddpdoctor_run(program: Path, *arguments: str, ranks: int = 2) -> list[str]:
    return [*ddpdoctor("run"), *_torchrun(ranks)[3:], str(program), *arguments]


def _torchrun(ranks: int) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", str(ranks),
    ]  # fmt: skip


def ddpdoctor(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ddpdoctor", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This environment without settings of ddpdoctor or of a surrounding job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DDPDOCTOR_", "TORCHELASTIC_"))
    }
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | changes


@contextmanager
def started(
    command: Sequence[str], cwd: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A running command; whatever it has started is killed at the end, also on failure.

    torchrun gives each rank a session of its own, so the processes are told by a variable
    that they inherit and not by their session.
    """
    job = f"{_JOB_VARIABLE}={uuid.uuid4().hex}"
    env = (env or environment()) | dict([job.split("=", 1)])
    process = subprocess.Popen(
        command, cwd=cwd, env=env, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            _kill_all(job)


def finish(
    command: Sequence[str],
    cwd: Path,
    env: dict[str, str] | None = None,
    seconds: float = JOB_SECONDS,
) -> Finished:
    """Run a command to its end. Raises TimeoutExpired, with all its processes killed."""
    with started(command, cwd, env) as process:
        out, err = process.communicate(timeout=seconds)
    return Finished(process.returncode, out, err)


def finish_unrecorded(
    command: Sequence[str], cwd: Path, env: dict[str, str] | None = None
) -> Finished:
    """Run a job whose ranks are not recorded to its end.

    Ranks of torch 2.13 on gloo abort at exit in about a third of plain runs, without us and also
    after `destroy_process_group`; such a run is repeated. Recorded ranks are not given
    this excuse.
    """
    for _ in range(TRIES):
        done = finish(command, cwd, env)
        if TORCHS_ABORT not in done.err:
            break
    return done


def _kill_all(job: str) -> None:
    """End every process that carries the job's variable, twice for those just being started."""
    for _ in range(2):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _carries(entry, job):
                with suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)


def _carries(process: Path, job: str) -> bool:
    try:
        return job.encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
