"""The unix socket on which torch itself answers for this rank, also while Python cannot run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ddpdoctor.notices import mention
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.registration import registration_folder

MOST_BYTES: Final = 107  # of a unix socket's path; the folder's 0700 keeps others out


class WorkerServer:
    """Starts the server where torch has one; without it `diagnose` knows less, and that is all."""

    def __init__(self) -> None:
        self._path: Path | None = None
        try:
            path = registration_folder() / f"{os.getpid()}.sock"
            if len(os.fsencode(path)) > MOST_BYTES:
                return
            path.unlink(missing_ok=True)  # of a process of this number that was killed
            private.start_worker_server(str(path))
            self._path = path
        except (OSError, AttributeError, ValueError, RuntimeError) as error:
            mention("no server in this process (%s)", error)

    def close(self) -> None:
        """The way to it goes; its thread waits until the process ends."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
