"""Ranks started one by one, without a launcher that ends the others when one of them fails."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.launching import JOB_SECONDS, Finished, environment, started


def finish_ranks(program: Path, arguments: list[str], cwd: Path, **env: str) -> list[Finished]:
    """Run one rank for each argument, all with all arguments, and wait for each to end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    of_job = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(arguments)),
        "DDPDOCTOR_REPORT": "0",
    } | env  # fmt: skip
    command = [sys.executable, str(program), *arguments]
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(started(command, cwd, environment(RANK=str(rank), **of_job)))
            for rank in range(len(arguments))
        ]
        outputs = [job.communicate(timeout=JOB_SECONDS) for job in jobs]
    return [Finished(job.returncode, *output) for job, output in zip(jobs, outputs, strict=True)]
