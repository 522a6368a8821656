"""Where a rank writes its files while it runs, and how they come into the run folder at the end.

On a network file system they are written to the temporary folder of the host: there each record
would be a message, and a server that does not answer would hold up the training thread. That
holds for the facts, too. The run folder gets a note of where they are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ddpdoctor.events import FACTS_SUFFIX
from ddpdoctor.laststacks import HANGUP_SUFFIX, STACKS_SUFFIX
from ddpdoctor.localrecords import SUFFIX, LocalRecord
from ddpdoctor.notices import warn

# As /proc/self/mountinfo names them; each kind of FUSE is "fuse.<name>". `fuseblk` is a local disk.
REMOTE_TYPES: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "glusterfs", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs",
        "vboxsf", "virtiofs", "wekafs",
    }
)  # fmt: skip
COPY_S: Final = 20.0  # a launcher that ends a job gives its processes 30 s and more
_COPY_BYTES: Final = 1024 * 1024


def is_remote(folder: Path, mountinfo: str) -> bool:
    """Whether a folder lies on a network file system, by the text of /proc/self/mountinfo."""
    kind = ""
    longest = -1
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not source:
            continue
        point = Path(_unescaped(fields[4]))
        if folder.is_relative_to(point) and len(point.parts) >= longest:  # a later mount covers
            longest, kind = len(point.parts), source.split()[0]
    return kind.partition(".")[0] in REMOTE_TYPES


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def writes_locally(folder: Path) -> bool:
    """By DDPDOCTOR_LOCAL (1 or 0); else where the folder is remote and the temporary one is not."""
    wanted = os.environ.get("DDPDOCTOR_LOCAL", "")
    if wanted in ("0", "1"):
        return wanted == "1"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        local = Path(tempfile.gettempdir()).resolve()
    except OSError:  # there may be no folder for temporary files
        return False
    return is_remote(folder.resolve(), mounts) and not is_remote(local, mounts)


class Placement:
    """Where one rank's file is written (`path`) and where it belongs (`home`)."""

    def __init__(self, home: Path, rank: int) -> None:
        self.home = home
        self.path = home
        self.answers = True  # False once the run folder did not take the copy
        self._rank = rank
        self._note = home.with_suffix(SUFFIX)
        if writes_locally(home.parent):
            # a folder that only this user may enter
            self.path = Path(tempfile.mkdtemp(prefix="ddpdoctor-record-")) / home.name
            note = LocalRecord(rank, socket.gethostname(), str(self.path))
            self._note.write_text(json.dumps(asdict(note)), encoding="utf-8")

    def bring_home(self) -> None:
        """Copy the closed files into the run folder, in bounded time; where that fails, say so."""
        if self.path == self.home:
            return
        failed: list[OSError] = []
        copy = threading.Thread(
            target=self._copy, args=(failed,), name="ddpdoctor-copy", daemon=True
        )
        copy.start()
        copy.join(COPY_S)
        if copy.is_alive():
            failed.append(TimeoutError(f"not done after {COPY_S:.0f} s"))
        if failed:
            self.answers = False
            warn(
                "the record of rank %d could not be copied into %s (%s); it is kept "
                "in %s on %s",
                self._rank, self.home.parent, failed[0], self.path.parent, socket.gethostname(),
            )  # fmt: skip

    def _copy(self, failed: list[OSError]) -> None:
        deadline = time.monotonic() + COPY_S
        try:
            written = (STACKS_SUFFIX, HANGUP_SUFFIX)
            stacks = [each for each in written if self.path.with_suffix(each).exists()]
            for suffix in (*stacks, FACTS_SUFFIX, self.path.suffix):  # readers look for the last
                copy_in_time(self.path.with_suffix(suffix), self.home.with_suffix(suffix), deadline)
        except OSError as error:
            failed.append(error)
            return
        with suppress(OSError):
            self._note.unlink()
        shutil.rmtree(self.path.parent, ignore_errors=True)


def copy_in_time(source: Path, target: Path, deadline: float) -> None:
    """Copy a file so that the target is there whole or not at all. Raises OSError."""
    unfinished = target.with_name(target.name + ".tmp")
    try:
        with source.open("rb") as old, unfinished.open("xb") as new:
            while piece := old.read(_COPY_BYTES):
                if time.monotonic() > deadline:
                    raise TimeoutError("it takes too long")
                new.write(piece)
            new.flush()
            os.fsync(new.fileno())  # a server's errors come here
        unfinished.replace(target)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
