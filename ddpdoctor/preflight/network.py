"""Measures the network of a launch: all-reduces of many sizes, then each two hosts.

All ranks take part and decide by numbers that they have reduced, so that they go on and stop
together. Every wait is bounded; what a rank that falls out leaves unmeasured is said.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import msgspec

from ddpdoctor.baseline import NetworkBaseline, PairRate, SizeRate, host_labels

SIZES: Final = tuple(1024 * 4**power for power in range(9))  # 1 KiB to 64 MiB
SIZES_S: Final = 4.0  # for all sizes, and for all pairs
PAIRS_S: Final = 4.0
OP_S: Final = 4.0  # for one call
_MEET_S: Final = 5.0  # for the group to be made, after all have come
_REPEATS: Final = 20
_SIZE_S: Final = 0.4  # for one size
_LONGEST_S: Final = 1.0  # that the next size may be expected to take
_PAIR_S: Final = 0.5
_LONG_ENOUGH_S: Final = 0.05  # a message of which the rate can be told; bursts are over by then
_LEAST_LARGE: Final = 1024 * 1024
_MOST_LARGE: Final = 16 * 1024 * 1024
_PINGS: Final = 10
_ROOM: Final = 4096  # bytes of one pair's result


@dataclass(frozen=True)
class Place:
    """Where a rank is, as it tells the others."""

    host: str
    network_id: str


@dataclass(frozen=True)
class Member:
    """This rank's part in the launch; `store` is for this measurement alone."""

    rank: int
    world_size: int
    local_rank: int
    place: Place
    store: Any


def measure(member: Member, wait_s: float) -> NetworkBaseline:
    """What this rank saw of it; rank 0 has the pairs of all. At most some 10 s after all came."""
    began = time.monotonic()
    places = _places(member, wait_s)
    backend = _backend(member.local_rank)
    network = NetworkBaseline(
        backend, member.world_size, host_labels([(p.host, p.network_id) for p in places]),
        os.environ.get(f"{backend.upper()}_SOCKET_IFNAME", ""),
        shares_host=len({place.network_id for place in places}) == 1,
    )  # fmt: skip
    if len(places) < member.world_size:
        missing = member.world_size - len(places)
        return replace(network, hosts=(), problem=f"{missing} ranks did not come to measure")
    probe = _Probe(member, backend)
    try:
        network = probe.whole(network)
    except (RuntimeError, OSError) as error:
        said = str(error).partition("\n")[0][:200]
        network = replace(probe.so_far(network), problem=f"it broke off: {said}")
    finally:
        probe.close()
    return replace(network, taken_s=round(time.monotonic() - began, 3))


def _places(member: Member, wait_s: float) -> list[Place]:
    """Of all ranks, as far as they come in time."""
    member.store.set(f"place/{member.rank}", msgspec.json.encode(member.place))
    deadline = time.monotonic() + wait_s
    found: list[Place] = []
    while len(found) < member.world_size:
        key = f"place/{len(found)}"
        if member.store.check([key]):
            found.append(msgspec.json.decode(member.store.get(key)[:_ROOM], type=Place))
        elif time.monotonic() > deadline:
            break
        else:
            time.sleep(0.05)
    return found


def _backend(local_rank: int) -> str:
    import torch

    usable = torch.cuda.is_available() and local_rank < torch.cuda.device_count()
    return "nccl" if usable and torch.distributed.is_nccl_available() else "gloo"


class _Probe:
    """One rank's part in the measurement, in a process group of its own."""

    def __init__(self, member: Member, backend: str) -> None:
        self._member = member
        self._on_device = backend == "nccl"
        self._backend = backend
        self._group: Any = None
        self._sizes: list[SizeRate] = []
        self._pairs: list[PairRate] = []
        self._planned = 0

    def whole(self, network: NetworkBaseline) -> NetworkBaseline:
        self._join()
        self._all_sizes()
        self._all_pairs(network.hosts)
        return self.so_far(network)

    def so_far(self, network: NetworkBaseline) -> NetworkBaseline:
        if self._member.rank == 0:
            self._collect()
        return replace(
            network, sizes=tuple(self._sizes), pairs=tuple(self._pairs), pairs_planned=self._planned
        )

    def close(self) -> None:
        from torch import distributed as dist

        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _join(self) -> None:
        from torch import cuda
        from torch import distributed as dist

        if self._on_device:
            cuda.set_device(self._member.local_rank)
        dist.init_process_group(
            self._backend, store=self._member.store, rank=self._member.rank,
            world_size=self._member.world_size, timeout=datetime.timedelta(seconds=_MEET_S),
        )  # fmt: skip
        self._group = dist.group.WORLD

    def _tensor(self, elements: int) -> Any:
        import torch

        device = f"cuda:{self._member.local_rank}" if self._on_device else "cpu"
        return torch.zeros(elements, dtype=torch.float32, device=device)

    def _finish(self, work: Any) -> None:
        """Raises RuntimeError where it does not end in time."""
        if not self._on_device:
            work.wait(datetime.timedelta(seconds=OP_S))
            return
        deadline = time.monotonic() + OP_S
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise RuntimeError("a call did not end in time")

    def _largest(self, value: float) -> float:
        """Over all ranks."""
        from torch import distributed as dist

        tensor = self._tensor(1).fill_(value)
        self._finish(dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True))
        return float(tensor.item())

    def _reduced(self, tensor: Any) -> float:
        from torch import distributed as dist

        began = time.perf_counter()
        self._finish(dist.all_reduce(tensor, async_op=True))
        return time.perf_counter() - began

    def _all_sizes(self) -> None:
        began = time.monotonic()
        self._largest(0.0)
        for nbytes in SIZES:
            tensor = self._tensor(nbytes // 4)
            once = self._largest(self._reduced(tensor))  # also uses up what a link lets burst
            repeats = max(2, min(_REPEATS, int(_SIZE_S / max(once, 1e-6))))
            seconds = self._largest(median(self._reduced(tensor) for _ in range(repeats)))
            self._sizes.append(_size_rate(nbytes, seconds, self._member.world_size))
            expected = 4 * max(seconds, once if nbytes >= _LEAST_LARGE else 0.0)
            if self._largest(time.monotonic() - began) + 3 * expected > SIZES_S:
                break
            if expected > _LONGEST_S:
                break

    def _all_pairs(self, hosts: Sequence[str]) -> None:
        """One rank of each host; in each round every one of them has one other."""
        firsts = sorted({host: rank for rank, host in reversed(list(enumerate(hosts)))}.values())
        rounds = list(tournament(firsts))
        self._planned = sum(len(pairs) for pairs in rounds)
        began = time.monotonic()
        for pairs in rounds:
            for one, other in pairs:
                if self._member.rank == one:
                    self._tell(self._asks(one, other))
                elif self._member.rank == other:
                    self._answers(one)
            if self._largest(time.monotonic() - began) > PAIRS_S:
                break

    def _tell(self, pair: PairRate) -> None:
        self._member.store.set(f"pair/{pair.rank}/{pair.peer}", msgspec.json.encode(pair))
        count = self._member.store.add("pairs", 1)
        self._member.store.set(f"pairs/{count}", f"pair/{pair.rank}/{pair.peer}")

    def _collect(self) -> None:
        store = self._member.store
        try:
            for number in range(1, int(store.add("pairs", 0)) + 1):
                if store.check([f"pairs/{number}"]):
                    key = store.get(f"pairs/{number}")[:_ROOM].decode()
                    self._pairs.append(msgspec.json.decode(store.get(key)[:_ROOM], type=PairRate))
        except (RuntimeError, OSError, msgspec.MsgspecError, ValueError):
            return
        self._pairs.sort(key=lambda pair: (pair.rank, pair.peer))

    def _asks(self, rank: int, peer: int) -> PairRate:
        """The side that leads: it says what is sent next, and times it."""
        pings = [self._exchange(peer, 0, 0) for _ in range(_PINGS)]
        there = median(pings) / 2
        forth = self._rate(peer, there, sends=True)
        back = self._rate(peer, there, sends=False)
        self._command(peer, -1, 0)
        return PairRate(rank, peer, there, forth, back)

    def _rate(self, peer: int, latency_s: float, *, sends: bool) -> float:
        """GB/s of the largest message that was needed."""
        elements, began = _LEAST_LARGE // 16, time.monotonic()
        while True:
            taken = self._exchange(peer, *((elements, 0) if sends else (0, elements)))
            moving = max(taken - 2 * latency_s, 1e-9)
            enough = moving >= _LONG_ENOUGH_S and 4 * elements >= _LEAST_LARGE
            if enough or 4 * elements >= _MOST_LARGE or time.monotonic() - began > _PAIR_S:
                return 4 * elements / moving / 1e9
            elements *= 4

    def _exchange(self, peer: int, there: int, back: int) -> float:
        """Send so many elements and get so many, at least one each way."""
        outgoing, incoming = self._tensor(max(1, there)), self._tensor(max(1, back))
        self._command(peer, there, back)
        began = time.perf_counter()
        self._send(outgoing, peer)
        self._receive(incoming, peer)
        return time.perf_counter() - began

    def _answers(self, peer: int) -> None:
        """The side that follows, until it is told that this is all."""
        while True:
            told = self._tensor(2)
            self._receive(told, peer)
            there, back = int(told[0].item()), int(told[1].item())
            if there < 0:
                return
            incoming, outgoing = self._tensor(max(1, there)), self._tensor(max(1, back))
            self._receive(incoming, peer)
            self._send(outgoing, peer)

    def _command(self, peer: int, there: int, back: int) -> None:
        told = self._tensor(2)
        told[0], told[1] = float(there), float(back)
        self._send(told, peer)

    def _send(self, tensor: Any, peer: int) -> None:
        from torch import distributed as dist

        self._finish(dist.isend(tensor, peer))

    def _receive(self, tensor: Any, peer: int) -> None:
        from torch import distributed as dist

        self._finish(dist.irecv(tensor, peer))


def _size_rate(nbytes: int, seconds: float, world_size: int) -> SizeRate:
    algbw = nbytes / max(seconds, 1e-9) / 1e9
    return SizeRate(nbytes, seconds, algbw, algbw * 2 * (world_size - 1) / world_size)


def tournament(players: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Rounds in which everyone meets one other at most, until all have met."""
    circle: list[int | None] = list(players)
    if len(circle) % 2:
        circle.append(None)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield tuple(
            (min(one, other), max(one, other))
            for one, other in met
            if one is not None and other is not None
        )
        circle = [circle[0], circle[-1], *circle[1:-1]] if circle else circle
