"""What the run is called, and which attempt of it this is: the same on all ranks."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path
from typing import Final

from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.registration import start_time_ticks
from ddpdoctor.runnames import at, named_run_id, new_run_id

_STORE_KEY: Final = "ddpdoctor/attempt"


def agree_on_attempt(runs: Path) -> tuple[str, int]:
    """Run id and attempt number. The rank that asks first names them; nobody waits for another."""
    run_id = _proposed_run_id()
    proposal = f"{run_id}/{_next_attempt(runs / run_id)}"
    agreed = private.default_store().compare_set(_store_key(), "", proposal)
    run_id, _, attempt = str(agreed, "utf-8").rpartition("/")
    return run_id, int(attempt)


def _store_key() -> str:
    """After a restart torchrun may hand out the store of the life before, with its keys.

    On one host all ranks know which life it is; agents of several hosts may count differently.
    """
    on_one_host = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if on_one_host else "0"
    return f"{_STORE_KEY}/{life}"


def _proposed_run_id() -> str:
    """Named by the environment; else after the launcher, so that restarts are one run."""
    named = named_run_id(os.environ)
    if named is not None:
        return named
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _of_process(os.getppid())
    return new_run_id()


def _of_process(pid: int) -> str:
    """The same in each process that this one starts: when it began, and which one it is."""
    ticks = start_time_ticks(pid)
    ago = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    suffix = hashlib.sha256(f"{boot}{pid}{ticks}".encode()).hexdigest()[:4]
    return f"{at(round(time.time() - ago))}-{suffix}"


def claimed_attempt(run: Path, attempt: int) -> int:
    """This attempt or a later one, its folder made by this process alone.

    For a group of one rank: others that the launcher started may be as alone, and want the same.
    """
    run.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            (run / f"attempt-{attempt}").mkdir()
        except FileExistsError:
            attempt = max(attempt + 1, _next_attempt(run))
        else:
            return attempt


def _next_attempt(run: Path) -> int:
    taken = [int(match[1]) for path in run.glob("attempt-*")
             if (match := re.fullmatch(r"attempt-(\d{1,9})", path.name))]  # fmt: skip
    return max(taken, default=-1) + 1
