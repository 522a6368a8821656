"""Writes one rank's file: fixed-size records into mapped pieces that are reserved beforehand.

What was committed survives SIGKILL, since it lies in the page cache. Space is reserved by
`posix_fallocate` before it is mapped: writing into a sparse map on a full disk is SIGBUS and would
kill the training; an error of the reservation is an OSError, and the caller switches
recording off.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import struct
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ddpdoctor import events
from ddpdoctor.events import DETAIL_RECORD, STEP_RECORD, RankInfo, RunInfo

PIECE_BYTES: Final = 1024 * 1024
RING_RECORDS: Final = 4096
DETAIL_BYTES: Final = 64 * 1024 * 1024  # default budget of one rank
STEP_ROWS: Final = 1_250_000
HEADER_ALIGNMENT: Final = 256  # in the compact copy

_COMMIT = struct.Struct("<I")
_TIME = struct.Struct("<q")


class _Region:
    """Records of one size in pieces of 1 MiB, mapped one after the other as they fill."""

    def __init__(self, fd: int, offset: int, records: int, record_bytes: int) -> None:
        self.offset = offset
        self.records = records
        self.record_bytes = record_bytes
        self._fd = fd
        self._per_piece = PIECE_BYTES // record_bytes
        self._pieces: list[mmap.mmap] = []
        self._grow_lock = threading.Lock()

    @property
    def end(self) -> int:
        """File offset after the region, a multiple of the piece size."""
        pieces = -(-self.records // self._per_piece)
        return self.offset + pieces * PIECE_BYTES

    def place(self, slot: int) -> tuple[mmap.mmap, int]:
        """The map and the offset within it of a slot. Raises OSError when the disk is full."""
        piece, position = divmod(slot, self._per_piece)
        while piece >= len(self._pieces):
            self._grow()
        return self._pieces[piece], position * self.record_bytes

    def _grow(self) -> None:
        with self._grow_lock:
            offset = self.offset + len(self._pieces) * PIECE_BYTES
            os.posix_fallocate(self._fd, offset, PIECE_BYTES)
            self._pieces.append(mmap.mmap(self._fd, PIECE_BYTES, offset=offset))

    def read(self, records: int) -> bytes:
        """The first `records` records."""
        whole = b"".join(bytes(piece) for piece in self._pieces)
        return whole[: records * self.record_bytes]

    def close(self) -> None:
        for piece in self._pieces:
            piece.close()


class RankFile:
    """The file of this rank. Records may be added from any thread; one thread closes it.

    Raises OSError from the constructor and from `add` when the folder cannot be written or the
    disk is full.
    """

    def __init__(
        self, path: Path, run: RunInfo, rank: RankInfo, detail_bytes: int = DETAIL_BYTES
    ) -> None:
        self.path = path
        self._run = run
        self._rank = rank
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._lay_out(detail_bytes)
        except OSError:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise
        self._next_serial = itertools.count(1).__next__
        self._next_row = itertools.count().__next__
        self._rows = 0
        self._last_serial = 0
        self.closed = False

    def _lay_out(self, detail_bytes: int) -> None:
        os.posix_fallocate(self._fd, 0, events.HEADER_SPACE)
        records = detail_bytes // DETAIL_RECORD.size
        self._ring = _Region(self._fd, PIECE_BYTES, RING_RECORDS, DETAIL_RECORD.size)
        self._detail = _Region(self._fd, self._ring.end, records, DETAIL_RECORD.size)
        self._steps = _Region(self._fd, self._detail.end, STEP_ROWS, STEP_RECORD.size)
        for region in (self._ring, self._detail, self._steps):
            region.place(0)
        self._write_header(self._fd, self._regions(), closed=False)

    def _regions(self) -> dict[str, dict[str, int]]:
        named = {"ring": self._ring, "detail": self._detail, "steps": self._steps}
        return {
            name: {"offset": region.offset, "records": region.records}
            for name, region in named.items()
        }

    def _write_header(self, fd: int, regions: dict[str, dict[str, int]], *, closed: bool) -> None:
        header = {"run": asdict(self._run), "rank": asdict(self._rank), "closed": closed, **regions}
        raw = json.dumps(header).encode()
        if len(raw) > events.HEADER_SPACE - events.PREAMBLE.size:
            raise ValueError(f"the facts of rank {self._rank.rank} take {len(raw)} bytes")
        preamble = events.PREAMBLE.pack(events.MAGIC, events.SCHEMA_VERSION, len(raw))
        os.pwrite(fd, preamble + raw, 0)

    def add(  # noqa: PLR0913  one value per field of the record
        self,
        kind: int,
        code: int,
        flags: int,
        depth: int,
        step: int,
        sync: int,
        seq: int,
        group: int,
        bucket: int,
        site: int,
        peer: int,
        begin_ns: int,
        issued_ns: int,
        end_ns: int,
        nbytes: int,
    ) -> int:
        """Write one record and return its serial number, by which `finish` completes it."""
        serial = self._next_serial()
        payload = DETAIL_RECORD.pack(
            0, kind, code, flags, depth, step, sync, seq, group, bucket, site, peer,
            begin_ns, issued_ns, end_ns, nbytes,
        )  # fmt: skip
        self._commit(self._ring, (serial - 1) % RING_RECORDS, payload, serial)
        if serial <= self._detail.records:
            self._commit(self._detail, serial - 1, payload, serial)
        self._last_serial = max(self._last_serial, serial)
        return serial

    @staticmethod
    def _commit(region: _Region, slot: int, payload: bytes, serial: int) -> None:
        """Zero the commit word, write the payload (whose own word is 0), commit."""
        piece, offset = region.place(slot)
        _COMMIT.pack_into(piece, offset, 0)
        piece[offset : offset + DETAIL_RECORD.size] = payload
        _COMMIT.pack_into(piece, offset, serial)

    def finish(self, serial: int, end_ns: int) -> None:
        """Fill in the end of an open span, or the completion of a collective."""
        self._fill(serial, events.DETAIL_END_OFFSET, end_ns)

    def issued(self, serial: int, issued_ns: int) -> None:
        """Fill in when the call of a collective came back."""
        self._fill(serial, events.DETAIL_ISSUED_OFFSET, issued_ns)

    def _fill(self, serial: int, field_offset: int, value: int) -> None:
        if self.closed:
            return
        piece, offset = self._ring.place((serial - 1) % RING_RECORDS)
        if _COMMIT.unpack_from(piece, offset)[0] == serial:
            _TIME.pack_into(piece, offset + field_offset, value)
        if serial <= self._detail.records:
            piece, offset = self._detail.place(serial - 1)
            _TIME.pack_into(piece, offset + field_offset, value)

    def flag(self, serial: int, flags: int) -> None:
        """Set further flags of a record."""
        if self.closed:
            return
        piece, offset = self._ring.place((serial - 1) % RING_RECORDS)
        if _COMMIT.unpack_from(piece, offset)[0] == serial:
            piece[offset + events.DETAIL_FLAGS_OFFSET] |= flags
        if serial <= self._detail.records:
            piece, offset = self._detail.place(serial - 1)
            piece[offset + events.DETAIL_FLAGS_OFFSET] |= flags

    def add_step(self, row: tuple[int, int, int, int, int, int, int, int]) -> None:
        """Write one step row, in the order of STEP_FIELDS. Rows past the last are dropped."""
        slot = self._next_row()
        if slot < self._steps.records:
            piece, offset = self._steps.place(slot)
            STEP_RECORD.pack_into(piece, offset, *row)
            self._rows = slot + 1

    @property
    def dropped(self) -> int:
        """Detail records that found no room (the newest RING_RECORDS of them are in the ring)."""
        return max(0, self._last_serial - self._detail.records)

    def close(self) -> None:
        """Write a compact copy, marked closed, in place of the file. Without room, leave it."""
        if self.closed:
            return
        self.closed = True
        try:
            self._replace_by_compact_copy()
        finally:
            for region in (self._ring, self._detail, self._steps):
                region.close()
            os.close(self._fd)

    def _space_for_header(self) -> int:
        """Bytes for the header of the compact copy: no larger than that of the open file."""
        raw = os.pread(self._fd, events.PREAMBLE.size, 0)
        used = events.PREAMBLE.size + int(events.PREAMBLE.unpack(raw)[2])
        return -(-used // HEADER_ALIGNMENT) * HEADER_ALIGNMENT

    def _replace_by_compact_copy(self) -> None:
        detail = self._detail.read(min(self._last_serial, self._detail.records))
        ring = self._ring.read(RING_RECORDS) if self.dropped else b""
        steps = self._steps.read(self._rows)
        regions: dict[str, dict[str, int]] = {}
        first = offset = self._space_for_header()
        for name, raw, size in (
            ("ring", ring, DETAIL_RECORD.size),
            ("detail", detail, DETAIL_RECORD.size),
            ("steps", steps, STEP_RECORD.size),
        ):
            regions[name] = {"offset": offset, "records": len(raw) // size}
            offset += len(raw)
        copy = self.path.with_suffix(".tmp")
        try:
            with copy.open("xb") as file:
                self._write_header(file.fileno(), regions, closed=True)
                file.seek(first)
                file.write(ring + detail + steps)
            copy.replace(self.path)
        except OSError:  # the file as it stands is whole, only larger
            copy.unlink(missing_ok=True)
