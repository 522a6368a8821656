"""Words and numbers that the messages of several checks share."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 6  # names in a list before the rest is counted


def percent(share: float) -> str:
    """A share as a percentage; not rounded up to 100 while it is less."""
    return f"{int(share * 100 + 1e-9)} %" if share >= 0.995 else f"{share:.0%}".replace("%", " %")


def rank_list(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 2`, `ranks 0, 1, 2, 3, 4, 5 and 10 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:SHOWN]]
    if len(ranks) > SHOWN:
        return f"ranks {', '.join(shown)} and {len(ranks) - SHOWN} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
