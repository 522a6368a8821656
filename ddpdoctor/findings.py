"""What a check says: findings with their evidence, confidence and fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How bad it is. Ordered, so that `--fail-on` is a comparison."""

    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def label(self) -> str:
        return self.name.lower()


class Confidence(StrEnum):
    """How sure the check is; apart from how bad it would be."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Evidence:
    """One measured number (or word) behind a finding, and the threshold it was held against."""

    what: str
    value: float | str | None
    unit: str = ""
    threshold: float | str | None = None


@dataclass(frozen=True)
class Location:
    """A place in the user's code where a culprit was seen."""

    rank: int
    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Finding:
    """One problem. Culprits cause it and victims wait for them; both are global ranks.

    `steps` are inclusive ranges of synchronised steps; `lost_s` is the time the job lost to it
    over the steps counted, in seconds, or None where it costs correctness and not time.
    `view` is the dashboard's query string that opens the place where it shows.
    """

    severity: Severity
    confidence: Confidence
    message: str
    fix: str
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    evidence: tuple[Evidence, ...] = ()
    lost_s: float | None = None
    where: tuple[Location, ...] = ()
    view: str | None = None
