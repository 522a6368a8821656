"""What `ddpdoctor check --network` measured, and the file that keeps it beside the runs. No torch.

GB = 10^9 bytes. algbw is bytes through time, busbw algbw times 2(n-1)/n, as in nccl-tests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ddpdoctor.events import MOST_RANKS, Count, RankNumber, Seconds, WorldSize
from ddpdoctor.regular import read_up_to

NETWORK_FILE: Final = "network.json"
MOST_BYTES: Final = 8 * 1024 * 1024
SMALL: Final = 1024  # bytes; below, gloo takes another way for all-reduce
LARGE: Final = 1024 * 1024
# A host or pair below this share of the median of the others is slow: links of one kind differ by
# a tenth or two, a link of another kind (1 of 10 Gbit/s, a bad cable at 100 Mbit/s) by far more.
SLOW_SHARE: Final = 0.6
Rate = Annotated[float, Meta(ge=0, le=1e6)]
Host = Annotated[str, Meta(max_length=256)]


@dataclass(frozen=True)
class SizeRate:
    """An all-reduce of so many bytes over all ranks: the median time."""

    nbytes: Count
    seconds: Seconds
    algbw_gb_per_s: Rate
    busbw_gb_per_s: Rate


@dataclass(frozen=True)
class PairRate:
    """A message between ranks of two hosts, there and back: half of the way there and back of a
    small one, and the rate of a large one in each direction."""

    rank: RankNumber
    peer: RankNumber
    latency_s: Seconds
    gb_per_s: Rate  # from rank to peer
    back_gb_per_s: Rate

    @property
    def slower_gb_per_s(self) -> float:
        return min(self.gb_per_s, self.back_gb_per_s)


@dataclass(frozen=True)
class NetworkBaseline:
    """The network of a launch. `hosts` holds each rank's; `problem` why it is not whole."""

    backend: Annotated[str, Meta(max_length=64)]
    world_size: WorldSize
    hosts: Annotated[tuple[Host, ...], Meta(max_length=MOST_RANKS)]
    interface: Annotated[str, Meta(max_length=256)]  # as the launch names it, or ""
    sizes: Annotated[tuple[SizeRate, ...], Meta(max_length=64)] = ()
    pairs: Annotated[tuple[PairRate, ...], Meta(max_length=100_000)] = ()
    pairs_planned: Count = 0
    taken_s: Seconds = 0.0
    shares_host: bool = False  # all ranks talk over one host's loopback
    problem: Annotated[str, Meta(max_length=1000)] = ""

    @property
    def alpha_ms(self) -> float | None:
        """What a small all-reduce takes."""
        small = [each.seconds for each in self.sizes if SMALL <= each.nbytes <= 16 * SMALL]
        return 1e3 * min(small) if small else None

    @property
    def busbw_gb_per_s(self) -> float | None:
        """The best that a large all-reduce reached."""
        large = [each.busbw_gb_per_s for each in self.sizes if each.nbytes >= LARGE]
        return max(large) if large else None

    @property
    def hosts_measured(self) -> int:
        return len({rank for each in self.pairs for rank in (each.rank, each.peer)})

    def ranks_on(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """All ranks on the hosts of these."""
        hosts = {self.hosts[rank] for rank in of if rank < len(self.hosts)}
        return tuple(rank for rank, host in enumerate(self.hosts) if host in hosts)

    def is_of(self, backend: str, hosts: tuple[str, ...]) -> bool:
        """Whether it was measured by a launch like this one."""
        return (self.backend, self.hosts) == (backend, hosts)


def host_labels(places: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Names of hosts by (name, network id) of each rank; networks of one name are told apart."""
    networks: dict[str, list[str]] = {}
    labels = []
    for host, network in places:
        known = networks.setdefault(host, [])
        if network not in known:
            known.append(network)
        number = known.index(network)
        labels.append(f"{host}/{number + 1}" if number else host)
    return tuple(labels)


@dataclass(frozen=True)
class SlowLink:
    """Links that are slower than the others: of one rank's host, or of one pair."""

    ranks: tuple[int, ...]  # one: all its links; two: only the one between them
    gb_per_s: float
    others_gb_per_s: float


def slow_links(network: NetworkBaseline) -> tuple[SlowLink, ...]:
    """A host is slow by all its links; a pair by its own, while both have others that are not.

    With fewer than three hosts there is nothing to compare with.
    """
    rates = {(each.rank, each.peer): each.slower_gb_per_s for each in network.pairs}
    ranks = sorted({rank for pair in rates for rank in pair})
    if len(ranks) < 3:
        return ()
    usual = _usual(rates, ranks)
    slow = {pair for pair, rate in rates.items() if rate < SLOW_SHARE * usual}
    own = {rank: [pair for pair in rates if rank in pair] for rank in ranks}
    hosts = [rank for rank in ranks if len(own[rank]) > 1 and all(p in slow for p in own[rank])]
    if len(hosts) == len(ranks):
        return ()
    found = [SlowLink((rank,), median(rates[pair] for pair in own[rank]), usual) for rank in hosts]
    rest = [pair for pair in sorted(slow) if not set(pair) & set(hosts)]
    return tuple(found + [SlowLink(pair, rates[pair], usual) for pair in rest])


def _usual(rates: dict[tuple[int, int], float], ranks: list[int]) -> float:
    """The median of each host's best link, so that one slow host does not set it."""
    return median(max(rate for pair, rate in rates.items() if rank in pair) for rank in ranks)


def write_baseline(network: NetworkBaseline, folder: Path) -> Path:
    """Beside the runs, in place of an older one. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NETWORK_FILE
    fresh = path.with_name(f".{NETWORK_FILE}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(network), indent=2))
    fresh.replace(path)
    return path


def read_baseline(folders: tuple[Path, ...]) -> NetworkBaseline | None:
    """The first that can be read."""
    for folder in folders:
        try:
            content = read_up_to(folder / NETWORK_FILE, MOST_BYTES + 1)
            if len(content) <= MOST_BYTES:
                return msgspec.json.decode(content, type=NetworkBaseline)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return None
