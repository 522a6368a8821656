"""Pickles of plain values: dicts, lists, tuples, numbers, strings. No class can come out of one.

Python's unpickler is not used. This one knows none of the instructions that name, call or build a
class, and gives up at the first that it does not know. What a plain pickle can do is bounded, too:
keys are strings, since hashing a tuple takes as long as its author likes, and only small
values may occur in several places, so that nothing grows far beyond the size of its file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

MAX_INSTRUCTIONS: Final = 5_000_000  # a dump of 20,000 calls with 20 frames each has 2 million
MAX_TEXT: Final = 64 * 1024  # bytes of one string, and of one number in longer form
MAX_SHARED: Final = 64  # parts of a value that occurs several times; torch's frames have three
_NEWEST: Final = 5  # version of the format
_MARK: Final = object()
_CONTAINERS: Final = (dict, list, tuple)
_KEYS: Final = {str}


class NotPlain(ValueError):
    """It is no pickle, a damaged one, or one that holds more than plain values."""


def load_plain(data: bytes) -> object:
    """The value in a pickle. Raises NotPlain."""
    try:
        return _Machine(data).run()
    except (IndexError, struct.error):
        raise NotPlain("it breaks off") from None
    except TypeError:
        raise NotPlain("it is damaged") from None


class _Machine:
    """The stack machine that a pickle is a program for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._shared: set[int] = set()  # their ids: they may not grow any more

    def run(self) -> object:
        """The instructions that make up half of a dump are performed here, for speed."""
        data, perform, recall = self._data, _PERFORM, self.recall
        push, memo, stack = self._stack.append, self._memo, self._stack
        at = 0
        for _ in range(MAX_INSTRUCTIONS):
            code = data[at]
            at += 1
            if code == _RECALL:
                recall(data[at])
            elif code == _KEEP:
                memo[data[at]] = stack[-1]
            elif code == _BYTE:
                push(data[at])
            elif code == _STOP:
                return stack.pop()
            else:
                self._at = at
                perform.get(code, _unknown)(self)
                at = self._at - 1
            at += 1
        raise NotPlain(f"it has more than {MAX_INSTRUCTIONS:,} instructions")

    def before(self) -> bytes:
        return self._data[self._at - 1 : self._at]

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def raw(self, length: int) -> bytes:
        if length > MAX_TEXT:
            raise NotPlain(f"it has a text of {length:,} bytes")
        if self._at + length > len(self._data):
            raise IndexError
        self._at += length
        return self._data[self._at - length : self._at]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def take(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise IndexError
        taken = tuple(self._stack[-count:])
        del self._stack[-count:]
        return taken

    def to_mark(self) -> list[Any]:
        """What lies above the newest mark, which goes with it."""
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                above = self._stack[index + 1 :]
                del self._stack[index:]
                return above
        raise IndexError

    def version(self) -> None:
        if self.byte() > _NEWEST:
            raise NotPlain("it is of an unknown version")

    def append(self, values: list[Any] | tuple[Any, ...]) -> None:
        target = self._stack[-1]
        if type(target) is not list or id(target) in self._shared:
            raise TypeError
        target.extend(values)

    def set_items(self, values: list[Any] | tuple[Any, ...]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(values) % 2 or id(target) in self._shared:
            raise TypeError
        keys = values[::2]
        if not set(map(type, keys)) <= _KEYS:
            raise NotPlain("a key is no string")
        target.update(zip(keys, values[1::2], strict=True))

    def keep(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def keep_next(self) -> None:
        self.keep(len(self._memo))

    def recall(self, index: int) -> None:
        try:
            value = self._memo[index]
        except KeyError:
            raise IndexError from None
        if type(value) in _CONTAINERS and id(value) not in self._shared:
            self._share(value)
        self._stack.append(value)

    def _share(self, value: Any) -> None:
        """Let a small value occur once more; neither it nor what it holds may grow from then on."""
        held, todo = [], [value]
        while todo:
            each = todo.pop()
            held.append(each)
            if isinstance(each, _CONTAINERS):
                if len(held) + len(todo) + len(each) > MAX_SHARED:
                    raise NotPlain("a large value occurs in several places")
                todo += each.values() if isinstance(each, dict) else each
        self._shared |= {id(each) for each in held if isinstance(each, _CONTAINERS)}

    def text(self, length: int) -> None:
        self.push(self.raw(length).decode("utf-8", "replace"))

    def long(self, length: int) -> None:
        self.push(int.from_bytes(self.raw(length), "little", signed=True))


def _unknown(machine: _Machine) -> None:
    code = machine.before()
    raise NotPlain(f"it holds more than plain values (instruction {code!r})")


_STOP: Final = ord(".")
_RECALL: Final = ord("h")
_KEEP: Final = ord("q")
_BYTE: Final = ord("K")
_UINT16: Final = struct.Struct("<H")
_UINT32: Final = struct.Struct("<I")
_UINT64: Final = struct.Struct("<Q")
_INT32: Final = struct.Struct("<i")
_DOUBLE: Final = struct.Struct(">d")
_PERFORM: Final[dict[int, Callable[[_Machine], None]]] = {
    code[0]: action
    for code, action in {
        b"\x80": _Machine.version,
        b"\x95": lambda m: m.number(_UINT64),  # a frame: its length is of no use here
        b"}": lambda m: m.push({}),
        b"]": lambda m: m.push([]),
        b")": lambda m: m.push(()),
        b"(": lambda m: m.push(_MARK),
        b"t": lambda m: m.push(tuple(m.to_mark())),
        b"l": lambda m: m.push(m.to_mark()),
        b"\x85": lambda m: m.push(m.take(1)),
        b"\x86": lambda m: m.push(m.take(2)),
        b"\x87": lambda m: m.push(m.take(3)),
        b"a": lambda m: m.append(m.take(1)),
        b"e": lambda m: m.append(m.to_mark()),
        b"s": lambda m: m.set_items(m.take(2)),
        b"u": lambda m: m.set_items(m.to_mark()),
        b"q": lambda m: m.keep(m.byte()),
        b"r": lambda m: m.keep(m.number(_UINT32)),
        b"\x94": _Machine.keep_next,
        b"h": lambda m: m.recall(m.byte()),
        b"j": lambda m: m.recall(m.number(_UINT32)),
        b"N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),
        b"\x89": lambda m: m.push(False),
        b"K": lambda m: m.push(m.byte()),
        b"M": lambda m: m.push(m.number(_UINT16)),
        b"J": lambda m: m.push(m.number(_INT32)),
        b"\x8a": lambda m: m.long(m.byte()),
        b"\x8b": lambda m: m.long(m.number(_UINT32)),
        b"G": lambda m: m.push(m.number(_DOUBLE)),
        b"X": lambda m: m.text(m.number(_UINT32)),
        b"\x8c": lambda m: m.text(m.byte()),
        b"\x8d": lambda m: m.text(m.number(_UINT64)),
    }.items()
}
