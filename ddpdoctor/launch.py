"""`ddpdoctor run`: torchrun with recording switched on in every rank, the script unchanged."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Final

from ddpdoctor.errors import TorchMissing
from ddpdoctor.launchrecord import forget_notes
from ddpdoctor.runfolders import runs_folder
from ddpdoctor.runnames import RUN_ID, named_run_id, new_run_id

_WATCHED: Final = frozenset(
    {
        signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
        signal.SIGUSR1, signal.SIGUSR2,
    }
)  # fmt: skip
_ENDING: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
_SENT_BY_A_PROCESS: Final = 0  # si_code above it: sent by the kernel
_LOOK_EVERY_S: Final = 1.0  # should a SIGCHLD be lost
_INTERPRETER: Final = re.compile(r"python[0-9.]*")
BOOTSTRAP: Final = Path(__file__).parent / "recorder" / "bootstrap"


@dataclass(frozen=True)
class Launched:
    """What came of a launch. `status` is torchrun's, or 128 + the signal that ended it.

    `run` is the folder in which ranks noted how they joined; they record there, too, unless
    another node named the run.
    """

    status: int
    recorded: bool  # whether a rank did
    interrupted: bool  # whether somebody sent a signal that ends it
    run: Path


def run_recorded(torchrun_arguments: Sequence[str]) -> Launched:
    """Start torchrun with these arguments, or the command that they are. Raises TorchMissing."""
    if util.find_spec("torch") is None:
        raise TorchMissing("`ddpdoctor run` starts torchrun, and torch is not installed here")
    folder = runs_folder().absolute()
    before = _attempts(folder)
    environment = dict(os.environ)
    run_id = named_run_id(environment) or new_run_id()
    forget_notes(folder / run_id, socket.gethostname())
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment["DDPDOCTOR_DIR"] = str(folder)
    environment[RUN_ID] = run_id
    command = command_of(torchrun_arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    with subprocess.Popen(command, env=environment, preexec_fn=_unblock) as launcher:  # noqa: PLW1509
        interrupted = _pass_signals_on(launcher)
        status = launcher.wait()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    status = status if status >= 0 else 128 - status
    return Launched(status, _attempts(folder) != before, interrupted, folder / run_id)


def command_of(arguments: Sequence[str]) -> list[str]:
    """With a `torchrun` that stands there already; a script that starts its ranks is `python`'s."""
    first, *others = arguments
    if _INTERPRETER.fullmatch(Path(first).name):
        return [shutil.which(first) or sys.executable, *others]
    given = others if Path(first).name == "torchrun" else arguments
    return [sys.executable, "-m", "torch.distributed.run", *given]


def _attempts(folder: Path) -> set[Path]:
    return set(folder.glob("*/attempt-*/rank[0-9]*"))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _pass_signals_on(launcher: subprocess.Popen[bytes]) -> bool:
    """Until the launcher ends, hand it the signals that somebody sends to this process.

    What the kernel sends, as for Ctrl-C, goes to the whole group of the terminal anyway. Returns
    whether one came that is to end the job.
    """
    interrupted = False
    while launcher.poll() is None:
        received = signal.sigtimedwait(_WATCHED, _LOOK_EVERY_S)
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        interrupted = interrupted or received.si_signo in _ENDING
        if received.si_code <= _SENT_BY_A_PROCESS:
            launcher.send_signal(received.si_signo)
    return interrupted
