"""The newest records of a region, gathered in memory, so that many changes are one write.

A write costs several microseconds of a step, however small it is. What is only here is lost when
the process is killed.
"""

from __future__ import annotations

from typing import Final

from ddpdoctor.recorder.regions import Region, write_at

TAIL_RECORDS: Final = 512
ZEROED_AHEAD: Final = 32  # records


class Tail:
    """Records that follow each other in the file. Not safe to be used by two threads at once."""

    def __init__(self, region: Region) -> None:
        self._fd = region.fd
        self._size = region.record_bytes
        self._raw = bytearray(TAIL_RECORDS * self._size)
        self._base = region.offset  # where in the file what is here begins
        self._used = 0
        self._changed = 0  # before it, the file holds the same

    def begin(self, place: int) -> None:
        """Write what there is, and go on at another place of the file."""
        self.flush()
        self._base, self._used, self._changed = place, 0, 0

    def append(self, record: bytes) -> int:
        """Returns where in the file it will lie."""
        used = self._used
        if used == len(self._raw):
            self.begin(self._base + used)
            used = 0
        self._used = after = used + self._size
        self._raw[used:after] = record
        return self._base + used

    def change(self, place: int, raw: bytes) -> None:
        """Replace bytes of a record, which may be in the file alone."""
        at = place - self._base
        if not 0 <= at < self._used:
            write_at(self._fd, raw, place)
            return
        self._raw[at : at + len(raw)] = raw
        self._changed = min(self._changed, at)

    def flush(self) -> None:
        """Raises OSError where the disk is full."""
        changed, used = self._changed, self._used
        if changed < used:
            write_at(self._fd, bytes(self._raw[changed:used]), self._base + changed)
            self._changed = used


class OverwritingTail(Tail):
    """Of a region whose old records are overwritten: a reader beside us sees no mixture.

    Some slots ahead of the newest record are zeroed, so that none is written over another.
    """

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self._end = region.end
        self._zeroed = 0  # up to here, of what is here

    def begin(self, place: int) -> None:
        super().begin(place)
        self._zeroed = 0

    def append(self, record: bytes) -> int:
        place = super().append(record)
        if self._used > self._zeroed:
            ahead = min(ZEROED_AHEAD * self._size, self._end - place)
            write_at(self._fd, bytes(ahead), place)
            self._zeroed = self._used - self._size + ahead
        return place
