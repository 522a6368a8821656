"""What ddpdoctor says in the training process, whose logging is the script's own and may raise.

The ranks that one launcher has started on a host say the same thing once together.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import zlib
from contextlib import suppress

_log = logging.getLogger("ddpdoctor")
_claimed: dict[str, socket.socket] = {}  # what this process says for its host, till it ends


def warn(message: str, *arguments: object) -> None:
    """A warning of logger `ddpdoctor`; where a handler or filter of the script raises, nothing.

    What another rank of this host has said already is said at level INFO.
    """
    mine = _is_mine_to_say(message, arguments)
    _say(logging.WARNING if mine else logging.INFO, message, arguments)


def mention(message: str, *arguments: object) -> None:
    """The same for what only a reader of level INFO wants to know."""
    _say(logging.INFO, message, arguments)


def _say(level: int, message: str, arguments: tuple[object, ...]) -> None:
    with suppress(Exception):  # from a handler of the script, for a message of ours
        _log.log(level, f"ddpdoctor: {message}", *arguments)


def _is_mine_to_say(message: str, arguments: tuple[object, ...]) -> bool:
    """Whether no sibling says it. Claims are names of sockets, which the kernel frees by itself."""
    if "RANK" not in os.environ:
        return True
    text = message % arguments if arguments else message
    if text in _claimed:
        return True
    name = f"\0ddpdoctor-{os.getuid()}-{os.getppid()}-{zlib.crc32(text.encode(errors='replace'))}"
    try:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return True
    try:
        claim.bind(name)
    except OSError as error:
        claim.close()
        return error.errno != errno.EADDRINUSE
    _claimed[text] = claim
    return True
