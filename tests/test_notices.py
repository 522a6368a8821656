"""Messages in the training process: the logging there is the script's, and must not end it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ddpdoctor.notices import mention, warn


class Strict(logging.Handler):
    """Of a script that treats every warning as an error."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        raise RuntimeError(record.getMessage())


@pytest.fixture
def strict() -> Iterator[Strict]:
    handler, root = Strict(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_handler_that_raises_does_not_reach_the_training(strict: Strict) -> None:
    with pytest.raises(RuntimeError):
        logging.getLogger("ddpdoctor").warning("it does raise")

    warn("%s is ignored", "a value")
    mention("not registered")

    assert strict.seen[1:] == ["ddpdoctor: a value is ignored", "ddpdoctor: not registered"]
