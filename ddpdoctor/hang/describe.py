"""Sentences and evidence that the hang checks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.findings import Evidence, Location
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.position import script_path
from ddpdoctor.hang.situation import Seen, Situation, numbers
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.stackframes import Condition, Frame
from ddpdoctor.wording import data_size, rank_list


def names(ranks: Sequence[Seen]) -> str:
    """`ranks 0 and 2`; by their pids where a rank's number is not known."""
    if all(seen.number is not None for seen in ranks):
        return rank_list(numbers(tuple(ranks)))
    pids = ", ".join(str(seen.process.pid) for seen in ranks)
    return f"the rank of pid {pids} (its number is not known)"


def verb(ranks: Sequence[Seen], singular: str, plural: str) -> str:
    return singular if len(ranks) == 1 else plural


def spot(frame: Frame | None) -> str:
    """`train.py:12 in train`, with the line itself where it was read."""
    if frame is None:
        return "an unknown place"
    text = f" `{frame.text}`" if frame.text else ""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}{text} in {frame.function}"


def calls(ranks: Sequence[Seen]) -> str:
    """Where ranks wait: `all_reduce (train.py:12)`, the different ones joined by `or`."""
    seen = dict.fromkeys(f"{each.place.call or 'a call'} ({each.place.text})" for each in ranks)
    return " or ".join(seen)


def doing(seen: Seen, *, plural: bool = False) -> str:
    """What a rank that waits for nobody does; `plural` where it stands for several."""
    place = seen.place
    be = "are" if plural else "is"
    if place.activity is Activity.LEAVING:
        return f"{be} taking the process group down or ending ({place.call or 'no script frame'})"
    said_by_line = place.frame is not None and place.call in (place.frame.text or "")
    handles = ", in an exception handler" if place.frame and place.frame.in_handler else ""
    return f"{be} {'' if said_by_line else f'in {place.call} '}at {spot(place.frame)}{handles}"


def locations(ranks: Sequence[Seen]) -> tuple[Location, ...]:
    """Where the culprits stand, for ranks whose number is known."""
    return tuple(
        Location(seen.number, frame.file, frame.line, frame.function)
        for seen in ranks
        if seen.number is not None and (frame := seen.place.frame) is not None
    )


def hosts(snapshot: HangSnapshot) -> tuple[str, ...]:
    return (snapshot.host,)


def looks(snapshot: HangSnapshot) -> Evidence:
    return Evidence("watched without any progress", round(snapshot.watched_s, 1), "s")


def condition_of(seen: Seen) -> tuple[Frame, Condition] | None:
    """What decides that a rank comes to where it is: by the rank, else around its own line."""
    frames = script_path(seen.process)[::-1]
    for frame in frames:
        if frame.condition and frame.condition.by_rank:
            return frame, frame.condition
    own = frames[0] if frames else None
    return (own, own.condition) if own and own.condition else None


def is_for_some_ranks(seen: Seen) -> bool:
    """Whether a call of its path is within an `if` that asks for the rank."""
    found = condition_of(seen)
    return found is not None and found[1].by_rank and not found[1].leaves


def conditions(ranks: Sequence[Seen]) -> tuple[Evidence, ...]:
    """Of each place where ranks stand, the condition for which they are there."""
    said: dict[tuple[str, str], list[Seen]] = {}
    for seen in ranks:
        found = condition_of(seen)
        if found is None:
            continue
        frame, condition = found
        file = frame.file.rsplit("/", 1)[-1]
        word = "unless" if condition.leaves else "by"
        text = f"{word} `if {condition.text}` ({file}:{condition.line})"
        said.setdefault((f"{file}:{frame.line}", text), []).append(seen)
    return tuple(
        Evidence(f"{names(own)} came to {place}", text) for (place, text), own in said.items()
    )


def states(ranks: Sequence[Seen]) -> tuple[Evidence, ...]:
    """What the system says of the processes, one line a rank; of those of a record it is gone."""
    found = []
    for seen in ranks:
        process = seen.process
        if not process.state:
            continue
        wait = f", waits in {process.wchan}" if process.wchan not in ("", "0") else ""
        holds = ", holds the GIL" if process.main_thread and process.main_thread.owns_gil else ""
        cpu = f"{process.movement.cpu_share:.0%} CPU"
        number = "rank ?" if seen.number is None else f"rank {seen.number}"
        moved = process.movement.socket_bytes
        sockets = "" if moved is None else f", {data_size(moved)} over TCP"
        found.append(
            Evidence(
                number, f"pid {process.pid}, state {process.state}, {cpu}{sockets}{wait}{holds}"
            )
        )
    return (*found, *(line for seen in ranks for line in _unsent(seen)))


def _unsent(seen: Seen) -> Iterator[Evidence]:
    for each in seen.process.unsent:
        number = "rank ?" if seen.number is None else f"rank {seen.number}"
        yield Evidence(number, f"{data_size(each.nbytes)} wait to be taken by {each.peer}")


def memory_kills(snapshot: HangSnapshot) -> tuple[Evidence, ...]:
    """Kills for memory in the job's control groups; none is said where there were none."""
    return tuple(
        Evidence(f"control group {each.group}", each.kills, "processes killed for memory so far")
        for each in snapshot.memory_kills
    )


def records(ranks: Sequence[Seen]) -> tuple[Evidence, ...]:
    """Where recorded ranks are in the order of each group's collectives."""
    found = [
        Evidence(
            f"rank {seen.number}, its record",
            f"{'in' if last.pending else 'completed'} number {last.seq} ({last.op}) of group "
            f"{last.group}",
        )
        for seen in ranks
        for last in seen.process.collectives
    ]
    return (*found, *(line for seen in ranks for line in _in_band(seen)))


_SHOWN_PENDING = 3  # of one rank; those behind the first ones wait for these


def _in_band(seen: Seen) -> Iterator[Evidence]:
    """What the rank's flight recorder says, which answers also while Python cannot run."""
    pending = seen.process.in_band
    what = f"rank {seen.number}, its flight recorder"
    if pending is not None and not pending:
        yield Evidence(what, "nothing is pending")
    for entry in (pending or ())[:_SHOWN_PENDING]:
        sizes = " ".join("x".join(map(str, size)) for size in entry.sizes)
        yield Evidence(
            what,
            f"number {entry.seq} ({entry.op}) of group {entry.group} is pending"
            f"{f', sizes {sizes}' if sizes else ''}, since {entry.age_s:.0f} s",
        )


def victims(scene: Situation, culprits: Sequence[Seen]) -> tuple[int, ...]:
    return numbers(tuple(seen for seen in scene.waiting if seen not in culprits))
