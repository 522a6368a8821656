"""Space for records of one size within a rank file, written by `pwrite`.

No map: a file that somebody truncates would turn a store into SIGBUS and kill the training; and a
full disk is an OSError here. What was written lies in the page cache and survives SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

import numpy as np
import numpy.typing as npt

BLOCK_RECORDS: Final = 16_384  # records that are read or moved at once

# `os.pwrite` gives the interpreter's lock away at each call; with another busy Python thread the
# training thread would then wait up to 5 ms to get it back. The C function by itself does not.
_pwrite = ctypes.PyDLL(None).pwrite
_pwrite.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_longlong)
_pwrite.restype = ctypes.c_ssize_t


def write_at(fd: int, raw: bytes, offset: int) -> None:
    """Write all of `raw`. Raises OSError with the system's reason, also where a part found room."""
    written = max(0, _pwrite(fd, raw, len(raw), offset))
    while written < len(raw):
        written += os.pwrite(fd, raw[written:], offset + written)


class Region:
    """Records at a fixed place of the file."""

    def __init__(self, fd: int, offset: int, records: int, record_bytes: int) -> None:
        self.offset = offset
        self.records = records
        self.record_bytes = record_bytes
        self.fd = fd

    @property
    def end(self) -> int:
        return self.offset + self.records * self.record_bytes

    def place(self, slot: int) -> int:
        """Offset of a slot in the file."""
        return self.offset + slot * self.record_bytes

    def read(self, first: int, records: int) -> bytes:
        return os.pread(self.fd, records * self.record_bytes, self.place(first))

    def write(self, first: int, raw: bytes) -> None:
        write_at(self.fd, raw, self.place(first))


def thin_out(
    region: Region, used: int, dtype: np.dtype[np.void], stride: int, newest: int
) -> tuple[dict[int, int], npt.NDArray[np.void]]:
    """Keep the records whose `step` is divisible by `stride`, moved to the front in order.

    Returns where each kept serial number now lies, and the `newest` of the records that were
    dropped. Every record moves towards the front: a process that is killed on the way leaves
    some records twice, and loses none that was to be kept.
    """
    slots: dict[int, int] = {}
    dropped = np.empty(0, dtype)
    for first in range(0, used, BLOCK_RECORDS):
        block = np.frombuffer(region.read(first, min(BLOCK_RECORDS, used - first)), dtype)
        keep = (block["commit"] > 0) & (block["step"] % stride == 0)
        kept = block[keep]
        region.write(len(slots), kept.tobytes())
        slots.update(zip(kept["commit"].tolist(), range(len(slots), len(slots) + len(kept)),
                         strict=True))  # fmt: skip
        dropped = np.concatenate([dropped, block[~keep]])[-newest:]
    return slots, dropped


def join_neighbours(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Step rows two by two: the times added up, the first step, the last sync."""
    even = rows[: len(rows) // 2 * 2]
    joined = even[::2].copy()
    for name in rows.dtype.names or ():
        if name.endswith("_us"):
            total = even[name][::2].astype(np.uint64) + even[name][1::2]
            joined[name] = np.minimum(total, np.iinfo(np.uint32).max)
    joined["sync"] = even["sync"][1::2]
    return joined
