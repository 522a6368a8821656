"""Words and numbers that the messages of several checks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHOWN = 6  # names in a list before the rest is counted


def printable(text: str) -> str:
    """The text on one line, with every character that could steer a terminal as its escape.

    That are control characters, those that turn the direction of writing or show nothing, and
    bytes of file names that are no text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\u00a0" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name, as Python holds it
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def percent(share: float) -> str:
    """A share as a percentage; not rounded up to 100 while it is less."""
    return f"{int(share * 100 + 1e-9)} %" if share >= 0.995 else f"{share:.0%}".replace("%", " %")


def data_size(count: int) -> str:
    """`12 bytes`, `3.4 MB`."""
    return f"{count / 1e6:.2g} MB" if count >= 100_000 else f"{count} bytes"


def rank_list(ranks: Sequence[int], unit: str = "rank") -> str:
    """`rank 1`, `ranks 0 and 2`, `ranks 0, 1, 2, 3, 4, 5 and 10 more`; or nodes."""
    if len(ranks) == 1:
        return f"{unit} {ranks[0]}"
    shown = [str(rank) for rank in ranks[:SHOWN]]
    if len(ranks) > SHOWN:
        return f"{unit}s {', '.join(shown)} and {len(ranks) - SHOWN} more"
    return f"{unit}s {', '.join(shown[:-1])} and {shown[-1]}"


def said_by_rank(values: Mapping[int, str]) -> str:
    """`0.1 on ranks 0 and 1; 0.2 on rank 2`."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {rank_list(own)}" for value, own in ranks.items())
