"""Marks that the training's own code sets: spans with a name, and where a step ends.

They need no torch, and do nothing where nothing is recorded: `import ddpdoctor` in a script costs
nothing, and the marks may stay in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from ddpdoctor.notices import warn

Function = TypeVar("Function", bound=Callable[..., Any])


class Sink(Protocol):
    """The recorder, as far as marks are concerned. Nothing of it raises."""

    def begin(self, name: str) -> None: ...
    def end(self, name: str) -> None: ...
    def step(self) -> None: ...


class _State:
    sink: Sink | None = None


def send_to(sink: Sink | None) -> None:
    """Where marks go from now on; None for nowhere."""
    _State.sink = sink


class span(ContextDecorator):
    """Time spent under a name, shown in the report beside the phases, and in the timeline.

    A context manager, and a decorator of functions. May be nested, in itself too: then the
    outermost counts. Recorded on the training thread only; elsewhere it does nothing.
    """

    def __init__(self, name: str) -> None:
        self._name = str(name)

    def __enter__(self) -> span:
        sink = _State.sink
        if sink is not None:
            sink.begin(self._name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sink = _State.sink
        if sink is not None:
            sink.end(self._name)

    def __call__(self, func: Function) -> Function:
        """Calling a generator or coroutine function only makes an object: it takes no time."""
        if inspect.isgeneratorfunction(func) or inspect.iscoroutinefunction(func):
            warn(
                "span(%r) cannot time a generator or coroutine function; use "
                "`with ddpdoctor.span(...)` within it",
                self._name,
            )
            return func
        return super().__call__(func)


def step() -> None:
    """A step of the training ends here.

    For loops in which ddpdoctor cannot tell: with an optimizer that is none of torch.optim's, or
    with several that take turns. From the first call on, steps end only where this is called; a
    call is passed over if no gradients were reduced since the last one.
    """
    if _State.sink is not None:
        _State.sink.step()
