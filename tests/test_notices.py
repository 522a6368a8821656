"""Messages in the training process: the logging there is the script's, and must not end it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from subprocess import PIPE, Popen

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


SAYS = """
import sys
from ddpdoctor.notices import warn
for text in sys.argv[1:]:
    warn(text)
print("said", flush=True)
input()
"""


@pytest.mark.parametrize(("variables", "times"), [({"RANK": "0"}, 2), ({}, 4)])
def test_ranks_of_one_launcher_say_the_same_once(variables: dict[str, str], times: int) -> None:
    """What only one of them has to say is said, too; processes that are no ranks have no sibling.

    One that has said it may say it again.
    """
    env = {name: value for name, value in os.environ.items() if name != "RANK"} | variables
    with ExitStack() as stack:
        ranks = []
        for number in range(2):
            texts = ["a disk is full", f"number {number} has its own", "a disk is full"]
            command = [sys.executable, "-c", SAYS, *texts]
            rank = Popen(command, env=env, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)
            ranks.append(stack.enter_context(rank))
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "said\n"
        said = "".join(rank.communicate("\n", timeout=60)[1] for rank in ranks)

    assert said.count("a disk is full") == times
    assert said.count("has its own") == 2
