"""Writes one rank's file: header, ring of the newest records, step rows, detail.

A detail record is written once, with its commit word. When the detail is full, only steps
divisible by 2, then by 4 and so on stay in it; the newest records of the others are in the ring.

What begins and what ends is in the file at once. Only DDP's buckets, and the completions of calls,
are gathered until then, or until `flush`.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from bisect import bisect_left
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ddpdoctor import events
from ddpdoctor.events import DETAIL_RECORD, STEP_RECORD, RankInfo, RunInfo
from ddpdoctor.recorder.regions import Region, join_neighbours, thin_out, write_at
from ddpdoctor.recorder.tail import OverwritingTail, Tail
from ddpdoctor.tracefile import DETAIL_DTYPE, STEP_DTYPE

RING_RECORDS: Final = 4096
DETAIL_BYTES: Final = 64 * 1024 * 1024  # default budget of one rank
STEP_ROWS: Final = 1_250_000
HEADER_ALIGNMENT: Final = 256  # in the compact copy
FULL: Final = 0.75  # thinned out beyond this, the next doubling is due at once

StepRow = tuple[int, int, int, int, int, int, int, int]
_COMMIT: Final = struct.Struct("<I")
_TIMES: Final = struct.Struct("<qq")  # issued_ns, end_ns
_ALL_TIMES: Final = struct.Struct("<qqq")  # begin_ns before these
_GENERATION: Final = struct.Struct("<Q")


class RankFile:
    """The file of this rank. Records may be added from any thread; one thread closes it.

    Raises OSError when the folder cannot be written or the disk is full.
    """

    def __init__(
        self,
        path: Path,
        run: RunInfo,
        rank: RankInfo,
        detail_bytes: int = DETAIL_BYTES,
        step_rows: int = STEP_ROWS,
    ) -> None:
        self.path = path
        self._run = run
        self.rank = rank
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        records = detail_bytes // DETAIL_RECORD.size
        size = DETAIL_RECORD.size
        self._ring = Region(self._fd, events.HEADER_SPACE, RING_RECORDS, size)
        self._steps = Region(self._fd, self._ring.end, step_rows, STEP_RECORD.size)
        self._detail = Region(self._fd, self._steps.end, records, size)
        self._newest = Tail(self._detail)
        self._newest_in_ring = OverwritingTail(self._ring)
        self._newest_rows = Tail(self._steps)
        self._lock = threading.RLock()  # a signal's handler may issue a collective meanwhile
        self._serial = 0
        self._detail_used = 0
        self._rows_used = 0
        self._row_steps = 1  # steps that one row stands for
        self._row: list[int] = []
        self._row_filled = 0
        self._ring_serials = [0] * RING_RECORDS
        self._ring_used = 0
        self._open: dict[int, int] = {}  # serials of unfinished records: where they lie
        self._generation = 0
        self._unwritten = 0
        self._recording = True  # else records get a negative number and are written nowhere
        self.every = 1  # of the steps that the stride leaves, those divisible by it are in detail
        self.stride = 1  # steps divisible by it are in the detail
        self.closed = False
        self._stopped: str | None = None
        try:
            self._write_header(self._fd, self._regions(), closed=False)
        except OSError:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise

    def _regions(self) -> dict[str, dict[str, int]]:
        named = {"ring": self._ring, "detail": self._detail, "steps": self._steps}
        return {
            name: {"offset": region.offset, "records": region.records}
            for name, region in named.items()
        }

    def _write_header(
        self,
        fd: int,
        regions: dict[str, dict[str, int]],
        *,
        closed: bool,
    ) -> None:
        header = {
            "run": asdict(self._run), "rank": asdict(self.rank), "closed": closed,
            "stopped": self._stopped, **regions,
        }  # fmt: skip
        raw = json.dumps(header, ensure_ascii=False).encode(errors="replace")
        if len(raw) > events.PROGRESS_OFFSET - events.PREAMBLE.size:
            raise ValueError(f"the facts of rank {self.rank.rank} take {len(raw)} bytes")
        preamble = events.PREAMBLE.pack(events.MAGIC, events.SCHEMA_VERSION, len(raw))
        write_at(fd, preamble + raw, 0)

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
        """Add one record and return its serial number, by which `finish` completes it."""
        if not self._recording:
            self._unwritten -= 1
            return self._unwritten
        with self._lock:
            self._serial = serial = self._serial + 1
            record = DETAIL_RECORD.pack(
                serial, kind, code, flags, depth, step, sync, seq, group, bucket, site, peer,
                begin_ns, issued_ns, end_ns, nbytes,
            )  # fmt: skip
            if self._detail_used >= self._detail.records:
                self._thin_out()
            kept = step % self.stride == 0 and step % self.every == 0
            if kept and self._detail_used < self._detail.records:
                tail = self._newest
                place = tail.append(record)
                self._detail_used += 1
            else:
                tail = self._newest_in_ring
                place = self._into_ring(serial, record)
            if end_ns == 0:
                self._open[serial] = place
            if bucket < 0:
                tail.flush()
        return serial

    def _into_ring(self, serial: int, record: bytes) -> int:
        slot = self._ring_used % RING_RECORDS
        if slot == 0:
            self._newest_in_ring.begin(self._ring.offset)
        self._ring_used += 1
        self._open.pop(self._ring_serials[slot], None)
        self._ring_serials[slot] = serial
        return self._newest_in_ring.append(record)

    def _thin_out(self) -> None:
        """Double the stride until there is room again; the newest of what goes is in the ring."""
        self._flush()
        self._next_generation()
        while self._detail_used > FULL * self._detail.records and self.stride < events.MAX_STRIDE:
            self.stride *= 2
            slots, dropped = thin_out(
                self._detail, self._detail_used, DETAIL_DTYPE, self.stride, RING_RECORDS
            )
            self._detail_used = len(slots)
            places = {serial: self._detail.place(slot) for serial, slot in slots.items()}
            for record in dropped:
                serial = int(record["commit"])
                places[serial] = self._into_ring(serial, record.tobytes())
            in_ring = {s: place for s, place in self._open.items() if place < self._detail.offset}
            self._open = in_ring | {s: places[s] for s in self._open.keys() & places.keys()}
        self._flush()
        self._newest.begin(self._detail.place(self._detail_used))
        os.ftruncate(self._fd, self._detail.place(self._detail_used))
        self._next_generation()

    def _next_generation(self) -> None:
        """Odd while records move, so that a reader knows to look again."""
        self._generation += 1
        raw = _GENERATION.pack(self._generation)
        write_at(self._fd, raw, events.GENERATION_OFFSET)

    def record(self, on: bool) -> None:
        self._recording = on

    @property
    def records(self) -> int:
        """How many were added so far."""
        return self._serial

    def unfinished(self, kind: int) -> list[tuple[int, ...]]:
        """The records of one kind that have no end yet, oldest first, field by field."""
        with self._lock:
            if self.closed:
                return []
            self._flush()
            places = sorted(self._open.items())
            raw = [os.pread(self._fd, DETAIL_RECORD.size, place) for _, place in places]
        whole = [DETAIL_RECORD.unpack(each) for each in raw if len(each) == DETAIL_RECORD.size]
        return [record for record in whole if record[0] and record[1] == kind]

    def finish(self, serial: int, end_ns: int, issued_ns: int = 0) -> None:
        """Fill in the end of an open span; of a collective also when its call came back.

        With `end_ns` 0 the end stays unknown. A record that is no longer kept is passed over.
        """
        if serial < 0:
            return
        with self._lock:
            place = self._open.pop(serial, None)
            if place is not None and not self.closed:
                tail = self._tail_of(place)
                tail.change(place + events.ISSUED_OFFSET, _TIMES.pack(issued_ns, end_ns))
                if not issued_ns:
                    tail.flush()

    def retime(self, serial: int, begin_ns: int, end_ns: int) -> None:
        """Finish an open record by another clock. When its call came back is not known by that."""
        with self._lock:
            place = self._open.pop(serial, None)
            if place is not None and not self.closed:
                self._tail_of(place).change(
                    place + events.BEGIN_OFFSET, _ALL_TIMES.pack(begin_ns, 0, end_ns)
                )

    def _tail_of(self, place: int) -> Tail:
        return self._newest if place >= self._detail.offset else self._newest_in_ring

    def flush(self) -> None:
        """Write all that was gathered. From any thread."""
        with self._lock:
            if not self.closed:
                self._flush()

    def _flush(self) -> None:
        for tail in (self._newest, self._newest_in_ring, self._newest_rows):
            tail.flush()

    def progress(self, raw: bytes) -> None:
        """For `ddpdoctor record`: which step is under way, though none of it is written."""
        with self._lock:
            if not self.closed:
                write_at(self._fd, raw, events.PROGRESS_OFFSET)

    def flag(self, serial: int, flags: int) -> None:
        """Set further flags of a record, which may be finished already."""
        if serial < 0:
            return
        with self._lock:
            if self.closed:
                return
            self._flush()
            place = self._find(serial)
            if place is not None:
                now = os.pread(self._fd, 1, place + events.FLAGS_OFFSET)[0] | flags
                self._tail_of(place).change(place + events.FLAGS_OFFSET, bytes([now]))

    def _find(self, serial: int) -> int | None:
        """Where a record lies; the serial numbers of the detail ascend."""
        slot = bisect_left(range(self._detail_used), serial, key=self._serial_at)
        if slot < self._detail_used and self._serial_at(slot) == serial:
            return self._detail.place(slot)
        if serial in self._ring_serials:
            return self._ring.place(self._ring_serials.index(serial))
        return None

    def _serial_at(self, slot: int) -> int:
        raw = os.pread(self._fd, _COMMIT.size, self._detail.place(slot))
        return int(_COMMIT.unpack(raw.ljust(_COMMIT.size, b"\0"))[0])

    def add_step(self, row: StepRow) -> None:
        """Add one step row, in the order of STEP_FIELDS; when they are full, pairs become one."""
        with self._lock:
            if not self._row:
                self._row = list(row)
            else:
                self._row[1:-1] = [a + b for a, b in zip(self._row[1:-1], row[1:-1], strict=True)]
                self._row[-1] = row[-1]
            self._row_filled += 1
            if self._row_filled >= self._row_steps:
                self._write_row()

    def _write_row(self) -> None:
        if self._rows_used >= self._steps.records:
            self._join_rows()
        times = [min(value, events.MAX_U32) for value in self._row]
        self._newest_rows.append(STEP_RECORD.pack(*times))
        self._newest_rows.flush()
        self._rows_used += 1
        self._row, self._row_filled = [], 0

    def _join_rows(self) -> None:
        import numpy as np

        self._flush()
        rows = np.frombuffer(self._steps.read(0, self._rows_used), STEP_DTYPE)
        joined = join_neighbours(rows)
        self._next_generation()
        self._steps.write(0, joined.tobytes().ljust(len(rows) * STEP_RECORD.size, b"\0"))
        self._next_generation()
        self._rows_used = len(joined)
        self._newest_rows.begin(self._steps.place(self._rows_used))
        self._row_steps *= 2

    def stop(self, reason: str) -> None:
        """Note in the header that recording ended early; its place is taken since the start."""
        self._stopped = reason
        self._write_header(self._fd, self._regions(), closed=False)

    def close(self) -> None:
        """Write a compact copy, marked closed, in place of the file. Without room, leave it.

        Raises OSError where the file is lost: nothing that was written says so before.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            lost = ""
            try:
                lost = self._lost()
                if self._row:
                    self._write_row()
                self._flush()
                if not lost:
                    self._replace_by_compact_copy()
            except OSError:  # the file as it stands is whole, only larger
                self.path.with_suffix(".tmp").unlink(missing_ok=True)
            finally:
                os.close(self._fd)
        if lost:
            raise OSError(f"{self.path} was {lost} while it was written")

    def _lost(self) -> str:
        """What somebody did to the file; bytes that are written to it then go nowhere."""
        try:
            there = os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            there = False
        if not there:
            return "removed"
        raw = os.pread(self._fd, events.PREAMBLE.size, 0).ljust(events.PREAMBLE.size, b"\0")
        magic, _, size = events.PREAMBLE.unpack(raw)
        header = os.pread(self._fd, size, events.PREAMBLE.size) if magic == events.MAGIC else b""
        return "" if header.endswith(b"}") else "truncated"

    def _replace_by_compact_copy(self) -> None:
        ring = self._ring.read(0, min(self._ring_used, RING_RECORDS))
        detail = self._detail.read(0, self._detail_used)
        steps = self._steps.read(0, self._rows_used)
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
        with copy.open("xb") as file:
            self._write_header(file.fileno(), regions, closed=True)
            file.seek(first)
            file.write(ring + detail + steps)
        copy.replace(self.path)

    def _space_for_header(self) -> int:
        """Bytes for the header of the compact copy: no larger than that of the open file."""
        raw = os.pread(self._fd, events.PREAMBLE.size, 0)
        used = events.PREAMBLE.size + int(events.PREAMBLE.unpack(raw)[2])
        return -(-used // HEADER_ALIGNMENT) * HEADER_ALIGNMENT
