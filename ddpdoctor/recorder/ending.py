"""How this rank ends, noted at the moment at which it is known.

Hooks stand in front of `sys.excepthook`, `threading.excepthook` and `sys.exit`, and call what stood
there before. What `os._exit` or SIGKILL ends notes nothing; SIGTERM is the matter of `Backup`.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any, Final, NoReturn

from ddpdoctor.credentials import masked_text
from ddpdoctor.events import End, EndKind, Site
from ddpdoctor.recorder.callsite import is_user_file, site_of
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases

MAX_MESSAGE: Final = 300  # characters of an exception's message that are kept
_MAX_READ: Final = 4000  # of it that are looked at
_MAX_DEPTH: Final = 1000  # calls of a traceback that are looked at
_MAX_NAME: Final = 200  # characters of a function's name that are kept


def masked(message: str) -> str:
    """A message without what looks like a credential, and bounded."""
    return masked_text(message[:_MAX_READ])[:MAX_MESSAGE]


class Ending:
    """Hooks that note the end; `note_if_none` at the very end, `remove` puts back what was."""

    def __init__(self, phases: Phases, facts: FactsFile, guard: Guard) -> None:
        self._phases = phases
        self._facts = facts
        self._guard = guard
        self._noted = False
        self._exit_called: tuple[int, End] | None = None  # the step in which, and the end it is
        self._older_exception = getattr(sys, "last_value", None)
        self._originals = sys.excepthook, threading.excepthook, sys.exit
        self._ours = self._excepthook, self._thread_excepthook, self._exit
        sys.excepthook, threading.excepthook = self._ours[:2]
        sys.exit = self._ours[2]

    def remove(self) -> None:
        """What somebody else has put in front of ours stays, and calls ours, which pass on."""
        if sys.excepthook is self._ours[0]:
            sys.excepthook = self._originals[0]
        if threading.excepthook is self._ours[1]:
            threading.excepthook = self._originals[1]
        if sys.exit is self._ours[2]:
            sys.exit = self._originals[2]

    def note_if_none(self) -> None:
        """The process ends: by what is under way, or what the interpreter kept, or in peace."""
        if self._noted or not self._guard.active:
            return  # without recording, the step would be an old one
        under_way = sys.exception()  # multiprocessing ends its children while one is
        uncaught = getattr(sys, "last_value", None)
        if isinstance(under_way, SystemExit):
            self._note(self._of_exit(under_way.code, under_way.__context__))
        elif under_way is not None:
            self._note(self._of_exception(under_way))
        elif uncaught is not None and uncaught is not self._older_exception:
            self._note(self._of_exception(uncaught))
        elif self._exit_called is not None and self._exit_called[0] == self._phases.step:
            self._note(self._exit_called[1])
        else:
            self._note(self._end(EndKind.RETURNED))

    def _note(self, end: End) -> None:
        self._noted = True
        self._facts.end(end)

    def _end(self, kind: EndKind, **more: Any) -> End:
        at_ns, phases = time.monotonic_ns(), self._phases
        return End(kind, at_ns, max(0, phases.step_of_record), phases.current, **more)

    def _of_exception(self, error: BaseException) -> End:
        site, called = _raised_at(error.__traceback__)
        return self._end(
            EndKind.EXCEPTION,
            error=type(error).__name__,
            message=masked(_text(error)),
            site=site,
            called=called,
        )

    def _of_exit(self, code: object, while_handling: BaseException | None) -> End:
        """`sys.exit` within `except` ends for the exception: so do torch's own spawned ranks."""
        status = code if isinstance(code, int) else int(code is not None)
        if status and isinstance(while_handling, Exception):
            return self._of_exception(while_handling)
        return self._end(EndKind.EXIT, status=max(-(2**31), min(status, 2**31)))

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        self._guard.run(lambda: self._note(self._of_exception(error)))
        self._originals[0](kind, error, traceback)

    def _thread_excepthook(self, args: threading.ExceptHookArgs, /) -> None:
        """A thread that dies ends no rank, but may be what the others wait for."""
        self._guard.run(self._note_thread, args)
        self._originals[1](args)

    def _note_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            return  # the latter ends a thread in peace
        end = self._of_exception(args.exc_value)
        where = f" at {end.site.file.rsplit('/', 1)[-1]}:{end.site.line}" if end.site else ""
        name = args.thread.name if args.thread else "?"
        self._facts.note(f"thread {name} ended by {end.error}{where}: {end.message}")

    def _exit(self, status: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            self._guard.run(self._exit_is_called, status, sys.exception())
        self._originals[2](status)

    def _exit_is_called(self, status: object, while_handling: BaseException | None) -> None:
        self._exit_called = self._phases.step, self._of_exit(status, while_handling)


def _text(error: BaseException) -> str:
    """Its message; where a `__str__` of the user's raises, it has none."""
    return Guard(lambda _: None).run(str, error) or ""


def _raised_at(traceback: TracebackType | None) -> tuple[Site | None, str]:
    """The innermost of the user's lines on the way of an exception, and the function it called."""
    found: Site | None = None
    called = ""
    for _ in range(_MAX_DEPTH):
        if traceback is None:
            break
        frame = traceback.tb_frame
        if is_user_file(frame.f_code.co_filename):
            found, called = site_of(frame, traceback.tb_lineno), ""
        elif found is not None and not called:
            called = f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"[:_MAX_NAME]
        traceback = traceback.tb_next
    return found, called
