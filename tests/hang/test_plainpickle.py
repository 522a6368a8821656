"""Pickles of plain values load as Python's own unpickler loads them; all others are refused."""

from __future__ import annotations

import datetime
import os
import pickle
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.hang import plainpickle
from ddpdoctor.hang.plainpickle import NotPlain, load_plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_of_every_version_come_out_as_they_went_in(
    value: object, version: int
) -> None:
    assert load_plain(pickle.dumps(value, version)) == value


class Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("version", range(6))
def test_nothing_is_called(tmp_path: Path, version: int) -> None:
    trace = tmp_path / "called"

    with pytest.raises(NotPlain):
        load_plain(pickle.dumps({"entries": [Evil(trace)]}, version))

    assert not trace.exists()


@pytest.mark.parametrize(
    "value",
    [datetime.date(2026, 1, 1), {1, 2}, frozenset({1}), b"bytes", bytearray(b"b"), 1j, len, int],
    ids=lambda value: type(value).__name__,
)
def test_no_class_comes_out_not_even_a_harmless_one(value: object) -> None:
    with pytest.raises(NotPlain, match="more than plain values"):
        load_plain(pickle.dumps({"x": value}, 5))


def doubling(times: int, container: bytes) -> bytes:
    """A value that holds the one before twice, and so on: short, and huge when it is walked."""
    body = b"\x80\x02]q\x00"
    for index in range(times):
        again = b"h" + bytes([index])
        body += {b"l": b"(" + again * 2 + b"l", b"t": again * 2 + b"\x86"}[container]
        body += b"q" + bytes([index + 1])
    return body + b"."


@pytest.mark.parametrize("container", [b"l", b"t"])
def test_a_value_that_doubles_is_refused(container: bytes) -> None:
    with pytest.raises(NotPlain, match="large value"):
        load_plain(doubling(60, container))


def test_a_value_cannot_grow_after_it_was_put_in_several_places() -> None:
    """First empty in two places, then filled: what was small is small for good."""
    with pytest.raises(NotPlain):
        load_plain(b"\x80\x02]q\x00(h\x00h\x00lq\x010h\x00K\x01a.")
    with pytest.raises(NotPlain, match="damaged"):
        load_plain(b"\x80\x02(]q\x00h\x00K\x01al.")


def test_a_frame_that_many_calls_share_is_plain() -> None:
    frame = {"filename": "train.py", "line": 3, "name": "train"}
    value = {"entries": [{"frames": [frame, frame]}, {"frames": [frame]}]}

    assert load_plain(pickle.dumps(value, 2)) == value


@pytest.mark.parametrize("opening", [b"]", b"(", b"}"], ids=["lists", "marks", "dicts"])
def test_deep_nesting_is_no_danger(opening: bytes) -> None:
    """It is either built, without recursion, or refused."""
    closing = {b"]": b"a", b"(": b"l", b"}": b""}[opening]
    try:
        built = load_plain(b"\x80\x02" + opening * 300_000 + closing * 299_999 + b".")
    except NotPlain:
        return
    assert isinstance(built, (list, dict))


def test_keys_are_strings_since_others_take_as_long_to_hash_as_their_author_likes() -> None:
    nested = b")" + b"\x85" * 200_000  # a tuple in a tuple in a tuple

    with pytest.raises(NotPlain, match="key"):
        load_plain(b"\x80\x02}" + nested + b"K\x01s.")


@pytest.mark.parametrize(
    "body",
    [
        b"X" + struct.pack("<I", 2**31) + b"x",  # a text longer than its file
        b"\x8d" + struct.pack("<Q", 2**62) + b"x",
        b"\x8b" + struct.pack("<I", 2**31) + b"\x01",  # a number of 2 GB
        b"X" + struct.pack("<I", 100_000) + b"x" * 100_000,
        b"K\x01r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 7),
        b"h\x05", b"a", b"s", b"u", b"t", b"\x87", b"e", b"(u", b"q\x01", b"]K\x01s", b"}K\x01a",
        b"}(K\x01u", b"cos\nsystem\n", b"\x93", b"R", b"P0\n",
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_at_once(body: bytes) -> None:
    began = time.process_time()

    with pytest.raises(NotPlain):
        load_plain(b"\x80\x02" + body + b".")

    assert time.process_time() - began < 2  # microseconds


def test_the_memo_takes_no_memory_by_its_number() -> None:
    assert load_plain(b"\x80\x02K\x01r\xff\xff\xff\xff.") == 1


def test_a_program_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plainpickle, "MAX_INSTRUCTIONS", 1000)

    with pytest.raises(NotPlain, match="instructions"):
        load_plain(b"\x80\x02" + b"N" * 2000 + b".")


@given(st.binary(max_size=200))
def test_noise_raises_nothing_else(noise: bytes) -> None:
    with suppress(NotPlain):
        load_plain(b"\x80\x02" + noise)


def test_every_cut_of_a_pickle_is_told_to_break_off() -> None:
    whole = pickle.dumps({"entries": [{"a": 1, "b": [1.5, "text"]}], "version": "2.10"}, 2)

    for length in range(2, len(whole)):
        with pytest.raises(NotPlain):
            load_plain(whole[:length])
