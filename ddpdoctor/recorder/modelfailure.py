"""Errors of DDP's reducer and of autograd that tell how a model was used, read from their texts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from ddpdoctor.events import Site
from ddpdoctor.modelevents import FailureKind, ModelFailure
from ddpdoctor.recorder.callsite import is_user_file
from ddpdoctor.recorder.modelshape import Shape, text

_KINDS: Final = (  # the first whose words are in the text
    ("not compatible with static_graph", FailureKind.GRAPH_CHANGED),
    ("Expected to have finished reduction", FailureKind.UNUSED),
    ("mark a variable ready only once", FailureKind.READY_TWICE),
    ("modified by an inplace operation", FailureKind.IN_PLACE),
)
_PLACES: Final = re.compile(r"did not receive grad for rank \d+: ((?:\d+[ ,]*)+)")
_PLACE: Final = re.compile(r"Parameter at index (\d+)(?: with name (\S+))?")
_MOST_READ: Final = 100_000  # characters of a text
_NAMES_SHOWN: Final = 16
_MOST_CALLS: Final = 1000  # of a traceback


def failure_of(
    error: BaseException, models: Iterable[tuple[Shape, int]], here: Site | None
) -> ModelFailure | None:
    """What the error says of a model; None where it is of another kind.

    Places are those among the parameters that DDP reduces, so they name something only where
    one model was wrapped, or one alone has as many.
    """
    if not isinstance(error, RuntimeError):
        return None
    said = str(error)[:_MOST_READ]
    kind = next((kind for words, kind in _KINDS if words in said), None)
    if kind is None:
        return None
    shapes = list(models)
    shape, sync = shapes[0] if len(shapes) == 1 else (None, 0)
    return ModelFailure(
        kind,
        shape.info.model if shape is not None else None,
        sync,
        tuple(_names(said, shape))[:_NAMES_SHOWN],
        _raised_at(error.__traceback__) or here,
    )


def uncaught() -> BaseException | None:
    """The exception that ends this process, at its end."""
    return sys.exception() or getattr(sys, "last_value", None)


def _names(said: str, shape: Shape | None) -> Iterable[str]:
    for place, name in _PLACE.findall(said):
        yield text(name.rstrip(".")) if "with name" in said and name else _name(shape, int(place))
    listed = _PLACES.search(said)
    for place in re.findall(r"\d+", listed[1]) if listed else ():
        yield _name(shape, int(place))


def _name(shape: Shape | None, place: int) -> str:
    if shape is None or place >= len(shape.reduced_names):
        return f"parameter {place}"
    return shape.reduced_names[place]


def _raised_at(traceback: TracebackType | None) -> Site | None:
    """The innermost of the user's lines on the way of an exception."""
    found: Site | None = None
    for _ in range(_MOST_CALLS):
        if traceback is None:
            break
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found = Site(code.co_filename, traceback.tb_lineno, code.co_qualname)
        traceback = traceback.tb_next
    return found
