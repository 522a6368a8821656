"""The clock of a device against that of its host, from marks that it came to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

CLOCK_WINDOW_NS: Final = 10**9  # over which two clocks are compared, and over the one before
MOST_DRIFT: Final = 5e-5  # of two quartz clocks


@dataclass(slots=True)
class ClockPairs:
    """Bounds of host time minus device time, of this window and the one before.

    The device comes to a mark after the host issued it and before the host saw it done. The
    highest of the former is taken: it is exact where the device was idle.
    """

    low: deque[int] = field(default_factory=lambda: deque(maxlen=2))
    high: deque[int] = field(default_factory=lambda: deque(maxlen=2))
    began_ns: int = 0  # the window, by the device

    def add(self, issued_ns: int, device_ns: int, seen_ns: int) -> None:
        if not self.low or device_ns - self.began_ns >= CLOCK_WINDOW_NS:
            self.began_ns = device_ns
            self.low.append(issued_ns - device_ns)
            self.high.append(seen_ns - device_ns)
        self.low[-1] = max(self.low[-1], issued_ns - device_ns)
        self.high[-1] = min(self.high[-1], seen_ns - device_ns)

    @property
    def offset_ns(self) -> int:
        return max(self.low)

    @property
    def error_ns(self) -> int:
        """How far off it may be. Bounds that cross do so by the drift."""
        drift_ns = round(2 * CLOCK_WINDOW_NS * MOST_DRIFT)
        return abs(min(self.high) - self.offset_ns) + drift_ns if self.low else 0
