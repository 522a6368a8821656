"""Source lines and loops around frames; read only for ranks that live on this host, or by them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddpdoctor.hang.conditions import conditions_in
from ddpdoctor.hang.snapshot import ThreadStack
from ddpdoctor.stackframes import Condition, Frame, Loop

_MAX_BYTES: Final = 2 * 1024 * 1024  # generated files beyond this are not worth parsing
_LINE_SHOWN: Final = 160
_LOOPS: Final = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class _Source:
    lines: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()
    functions: tuple[Loop, ...] = ()  # and classes: their lines, first to last
    handlers: tuple[Loop, ...] = ()  # `except` blocks
    conditions: tuple[tuple[Loop, Condition], ...] = ()  # the lines that depend on each


class SourceReader:
    """Adds text and loops to the frames of the script; each file is read and parsed once.

    `shown` is what becomes of a line's text, and of that of a condition.
    """

    def __init__(self, most_bytes: int = _MAX_BYTES, shown: Callable[[str], str] = str) -> None:
        self._most_bytes = most_bytes
        self._shown = shown
        self._known: dict[str, _Source] = {}

    def annotate(self, stack: ThreadStack) -> ThreadStack:
        return replace(stack, frames=tuple(map(self.annotated, stack.frames)))

    def annotated(self, frame: Frame) -> Frame:
        if not frame.is_script:
            return frame
        if frame.file not in self._known:
            self._known[frame.file] = _read(frame.file, self._most_bytes)
        source = self._known[frame.file]
        if not 0 < frame.line <= len(source.lines):
            return frame
        text = source.lines[frame.line - 1].strip()[:_LINE_SHOWN]
        condition = _condition_of(source, frame.line)
        return replace(
            frame,
            text=self._shown(text),
            loops=_around(source, source.loops, frame.line),
            in_handler=bool(_around(source, source.handlers, frame.line)),
            condition=condition and replace(condition, text=self._shown(condition.text)),
        )


def _read(file: str, most_bytes: int) -> _Source:
    path = Path(file)
    try:
        if not path.is_absolute() or not path.is_file() or path.stat().st_size > most_bytes:
            return _Source()
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _Source()
    try:
        tree = ast.parse(text)
        conditions = tuple(conditions_in(tree))
    except (SyntaxError, ValueError, RecursionError):
        return _Source(tuple(text.splitlines()))
    nodes = list(ast.walk(tree))
    loops = tuple(_range(node) for node in nodes if isinstance(node, _LOOPS))
    functions = tuple(_range(node) for node in nodes if isinstance(node, _FUNCTIONS))
    handlers = tuple(_range(node) for node in nodes if isinstance(node, ast.ExceptHandler))
    return _Source(tuple(text.splitlines()), loops, functions, handlers, conditions)


def _range(node: ast.AST) -> Loop:
    return Loop(getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0)


def _condition_of(source: _Source, line: int) -> Condition | None:
    spans = _around(source, tuple(span for span, _ in source.conditions), line)
    found = [each for span, each in source.conditions if span in spans]
    by_rank = [each for each in found if each.by_rank]
    return max(by_rank or found, key=lambda each: each.line, default=None)


def _around(source: _Source, spans: tuple[Loop, ...], line: int) -> tuple[Loop, ...]:
    """Those of the spans that are around a line within its own function, outermost first."""
    function = max(
        (span for span in source.functions if line in span),
        key=lambda span: span.begin,
        default=Loop(0, len(source.lines) + 1),
    )
    inside = [span for span in spans if line in span and span.begin >= function.begin]
    return tuple(sorted(inside, key=lambda span: span.begin))
