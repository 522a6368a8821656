"""What ddpdoctor says in the training process, whose logging is the script's own and may raise."""

from __future__ import annotations

import logging
from contextlib import suppress

_log = logging.getLogger("ddpdoctor")


def warn(message: str, *arguments: object) -> None:
    """A warning of logger `ddpdoctor`; where a handler or filter of the script raises, nothing."""
    _say(logging.WARNING, message, arguments)


def mention(message: str, *arguments: object) -> None:
    """The same for what only a reader of level INFO wants to know."""
    _say(logging.INFO, message, arguments)


def _say(level: int, message: str, arguments: tuple[object, ...]) -> None:
    with suppress(Exception):  # from a handler of the script, for a message of ours
        _log.log(level, f"ddpdoctor: {message}", *arguments)
