"""Work on one rank after the other, in two threads: numpy leaves the interpreter to the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS: Final = 2  # more of them wait for the interpreter
WORTH_IT: Final = 16  # items; a few are done before a thread has begun


def of_each(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterable[Result]:
    """The results in the order of the items; what one raises is raised here."""
    if len(items) < WORTH_IT or (os.cpu_count() or 1) < THREADS:
        return [work(item) for item in items]
    chunks = [items[first : first + WORTH_IT] for first in range(0, len(items), WORTH_IT)]
    with ThreadPoolExecutor(THREADS) as threads:
        done = threads.map(lambda chunk: [work(item) for item in chunk], chunks)
        return [result for chunk in done for result in chunk]
