"""Ranks that are past the line in which others wait for them to wrap the model, too. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddpdoctor.hang.position import Position, position
from ddpdoctor.hang.situation import Kind, Seen, situation
from ddpdoctor.hang.snapshot import HangSnapshot, RankProcess

# The first collective of DistributedDataParallel's constructor: no rank comes past it alone.
_FIRST_CALL: Final = "_verify_param_shape_across_processes"
_CONSTRUCTOR: Final = "__init__"
_DDP_FILE: Final = "torch/nn/parallel/distributed.py"


@dataclass(frozen=True)
class Unwrapped:
    """Ranks that stand in the constructor, and those that have gone by it."""

    wrapping: tuple[Seen, ...]
    past: tuple[Seen, ...]


def unwrapped(snapshot: HangSnapshot) -> Unwrapped | None:
    """None unless every rank of this host is one or the other."""
    scene = situation(snapshot)
    if scene.kind not in (Kind.MOVES, Kind.HELD_UP, Kind.DIFFERENT_CALLS) or snapshot.ended:
        return None
    wrapping = tuple(seen for seen in scene.waiting if _wraps(seen.process) and not seen.moves)
    past = tuple(
        seen
        for seen in scene.all
        if wrapping and all(_is_past(seen.process, other.process) for other in wrapping)
    )
    together = len(wrapping) + len(past) == len(scene.all)
    return Unwrapped(wrapping, past) if wrapping and past and together else None


def _wraps(rank: RankProcess) -> bool:
    frames = rank.main_thread.frames if rank.main_thread else ()
    return any(frame.function.endswith(_FIRST_CALL) for frame in frames) and any(
        frame.function.rsplit(".", 1)[-1] == _CONSTRUCTOR and frame.file.endswith(_DDP_FILE)
        for frame in frames
    )


def _is_past(rank: RankProcess, other: RankProcess) -> bool:
    return not _wraps(rank) and position(rank, other) is Position.AHEAD
