"""How large the batches of a model are, reduction by reduction: equal ones in a row are a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ddpdoctor.modelevents import BatchRun

_MOST_RUNS: Final = 4096  # after that only those that end at reductions that are looked at
_RUNS_KEPT: Final = 64  # before they are to be written

Size = tuple[int, int, int]  # samples, elements, forwards


class BatchRuns:
    """The open run and those that are not written yet. `is_due` chooses reductions."""

    def __init__(self, is_due: Callable[[int], bool]) -> None:
        self._is_due = is_due
        self._size: Size = (0, 0, 0)  # of the open run
        self._since = 0  # the first reduction with it
        self._until = -1  # the last
        self._runs: list[BatchRun] = []
        self._taken = 0

    def count(self, sync: int, size: Size) -> bool:
        """Add one reduction's batch; whether there are many runs to be written."""
        if size != self._size or self._until != sync - 1:
            self._end()
            self._size, self._since = size, sync
        self._until = sync
        return len(self._runs) > _RUNS_KEPT

    def take(self) -> tuple[BatchRun, ...]:
        """All runs since the last time; the open one goes on as a new one."""
        self._end()
        runs = tuple(self._runs)
        self._taken += len(runs)
        self._runs.clear()
        return runs

    def _end(self) -> None:
        syncs = self._until - self._since + 1
        if self._size[0] and syncs > 0 and (self._taken < _MOST_RUNS or self._is_due(self._until)):
            self._runs.append(BatchRun(self._since, syncs, *self._size))
        self._since = self._until + 1
