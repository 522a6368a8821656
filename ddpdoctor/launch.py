"""`ddpdoctor run`: torchrun with recording switched on in every rank, the script unchanged."""

from __future__ import annotations

import datetime
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from types import FrameType
from typing import Final

from ddpdoctor.errors import TorchMissing
from ddpdoctor.tracefile import runs_folder

BOOTSTRAP: Final = Path(__file__).parent / "recorder" / "bootstrap"


def run_recorded(torchrun_arguments: Sequence[str]) -> tuple[int, Path]:
    """Start torchrun with these arguments; return its exit status and the run's folder.

    The status of a launcher that a signal ended is 128 + the signal, as a shell says it.
    Raises TorchMissing.
    """
    if util.find_spec("torch") is None:
        raise TorchMissing("`ddpdoctor run` starts torchrun, and torch is not installed here")
    run_id = os.environ.get("DDPDOCTOR_RUN_ID") or _new_run_id()
    folder = runs_folder().absolute()
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment |= {"DDPDOCTOR_RUN_ID": run_id, "DDPDOCTOR_DIR": str(folder)}
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_arguments]
    with subprocess.Popen(command, env=environment) as launcher:
        status = _wait(launcher)
    return status, folder / run_id


def _new_run_id() -> str:
    now = datetime.datetime.now(tz=datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _wait(launcher: subprocess.Popen[bytes]) -> int:
    """Wait for the launcher; signals that ask us to end are passed on to it."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        launcher.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends both
    try:
        status = launcher.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
