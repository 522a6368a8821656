"""Facts that come later than the header of a rank file: one JSON object a line, beside it."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path

import msgspec

from ddpdoctor.deliveries import Evaluated, LoaderEpoch, RandomStates, StreamedSamples
from ddpdoctor.events import (
    ClockOffset,
    DrawnIndices,
    End,
    GroupInfo,
    HotLine,
    LoaderInfo,
    Part,
    Site,
    Stall,
)
from ddpdoctor.launchfacts import Process
from ddpdoctor.modelevents import MODEL_FACTS, ModelFact
from ddpdoctor.schedule import Switch

_NAMES = {kind: name for name, kind in MODEL_FACTS.items()}


class FactsFile:
    """Appends facts. Each line is written at once, so that a killed rank leaves what it knew."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()  # a signal's handler may write within a write
        self._file = path.open("xb", buffering=0)

    def group(self, group: GroupInfo) -> None:
        self._write("group", group)

    def ddp(self, group: GroupInfo) -> None:
        """The group over which a wrapped model reduces its gradients."""
        self._write("ddp", group)

    def site(self, number: int, site: Site) -> None:
        self._write("site", {"id": number, "site": asdict(site)})

    def hot_lines(self, lines: list[HotLine]) -> None:
        """All lines so far; a later list replaces an earlier one."""
        self._write("hot_lines", [asdict(line) for line in lines])

    def loader(self, loader: LoaderInfo) -> None:
        self._write("loader", loader)

    def drawn(self, drawn: DrawnIndices) -> None:
        """What a loader drew in an epoch so far; a later one of that epoch replaces it."""
        self._write("drawn", drawn)

    def epoch(self, epoch: LoaderEpoch) -> None:
        """How far a pass over a loader has come; a later one of that epoch replaces it."""
        self._write("epoch", epoch)

    def streamed(self, streamed: StreamedSamples) -> None:
        self._write("streamed", streamed)

    def random(self, states: RandomStates) -> None:
        self._write("random", states)

    def evaluated(self, evaluated: Evaluated) -> None:
        self._write("evaluated", evaluated)

    def process(self, process: Process) -> None:
        """Device, limits, network and command line; what the header has is not repeated."""
        self._write("process", replace(process, environment={}, versions={}, code={}))

    def clock(self, offset: ClockOffset) -> None:
        self._write("clock", offset)

    def stall(self, stall: Stall | None) -> None:
        """Where the rank stands still; None when it goes on."""
        self._write("stall", stall)

    def end(self, end: End) -> None:
        self._write("end", end)

    def switched(self, switch: Switch) -> None:
        """From this step on the rank records, or does not."""
        self._write("switch", switch)

    def parts(self, measured: tuple[Part, ...]) -> None:
        """Parts of a step that are counted here: where none is recorded, it was 0."""
        self._write("parts", [int(part) for part in measured])

    def name(self, number: int, name: str) -> None:
        """A name of the user's spans."""
        self._write("name", {"id": number, "name": name})

    def model(self, fact: ModelFact) -> None:
        """Encoded by msgspec: a sample holds hundreds of numbers, and the training waits."""
        fields = msgspec.json.encode(fact)
        self._put(b'{"fact": "%b", "data": %b}' % (_NAMES[type(fact)].encode(), fields))

    def note(self, text: str) -> None:
        self._write("note", text)

    def cost(self, hooks_ns: int, steps: int) -> None:
        self._write("cost", {"hooks_ns": hooks_ns, "steps": steps})

    def _write(self, fact: str, data: object) -> None:
        if is_dataclass(data) and not isinstance(data, type):
            data = asdict(data)
        text = json.dumps({"fact": fact, "data": data}, ensure_ascii=False)
        self._put(text.encode(errors="replace"))  # file names need not be UTF-8

    def _put(self, line: bytes) -> None:
        with self._lock:
            self._file.write(line + b"\n")

    def close(self) -> None:
        self._file.close()
