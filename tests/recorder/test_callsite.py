"""The user's line behind a call."""

from __future__ import annotations

import json
import sys
from types import CellType, SimpleNamespace

from ddpdoctor.recorder.callsite import CallSites


def test_the_innermost_frame_outside_libraries() -> None:
    """A call through the standard library is this file's, not json's."""
    announced = []
    sites = CallSites(lambda number, site: announced.append((number, site)))
    numbers = []

    class Value(dict):
        def items(self):
            numbers.append(sites.here(sys._getframe(0)))
            numbers.append(sites.here(sys._getframe(1)))
            return super().items()

    json.dumps(Value(a=1), indent=1)

    (_, inner), (_, outer) = announced
    assert inner.function.endswith("Value.items")
    assert outer.function == "test_the_innermost_frame_outside_libraries"
    assert outer.file == __file__


def test_a_line_has_one_number() -> None:
    announced = []
    sites = CallSites(lambda number, site: announced.append(site))

    numbers = [sites.here(sys._getframe(0)) for _ in range(5)]

    assert len(set(numbers)) == len(announced) == 1


def test_no_frame_is_zero() -> None:
    assert CallSites(lambda number, site: None).here(None) == 0


def test_a_broken_chain_of_frames_is_no_frame() -> None:
    """As CPython 3.11 gave one in a job: the frame outside a library's was a cell."""
    library = SimpleNamespace(f_code=json.dumps.__code__, f_back=CellType(None))

    assert CallSites(lambda number, site: None).here(library) == 0
