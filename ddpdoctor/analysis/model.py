"""The typed result of an analysis: what checks, report and dashboards read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ddpdoctor.analysis.gaintypes import NO_GAINS, Gains, StepCalls
from ddpdoctor.analysis.replay import Link
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.events import End, Phase, Site
from ddpdoctor.findings import Location
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

if TYPE_CHECKING:  # they are made of what is defined here
    from ddpdoctor.analysis.efficiency import Efficiency
    from ddpdoctor.analysis.frontier import Frontier
    from ddpdoctor.analysis.waitmodel import Waiting


@dataclass(frozen=True)
class PhaseTimes:
    """Mean milliseconds per counted step of one rank, as design §4 defines the terms.

    `input + forward + backward + wait + transfer + optimizer + between = step`; `blocked_ms` is
    `wait + transfer`, known even where the clocks of the ranks are not and the two parts are
    None. `overlapped_ms` is communication hidden behind compute, beside the sum.

    From `run_queue_ms` on they are parts of the step across its terms, each None where it was
    not measured (`events.Part`). `throttled_ms` is a part of `run_queue_ms`.
    """

    input_ms: float
    forward_ms: float
    backward_ms: float
    blocked_ms: float
    wait_ms: float | None
    transfer_ms: float | None
    optimizer_ms: float
    between_ms: float
    step_ms: float
    overlapped_ms: float | None
    run_queue_ms: float | None
    gc_ms: float | None
    throttled_ms: float | None
    io_ms: float | None
    io_pressure_ms: float | None  # of any task of the group or host, not of the training thread
    h2d_ms: float | None
    cpu_pressure_ms: float | None  # as that of storage


@dataclass(frozen=True)
class PhaseExcess:
    """What one phase adds to a rank's lateness: its own time minus the median of the others."""

    phase: Phase
    excess_ms: float  # mean per step in which the rank was last
    coverage: float  # share of the lateness; 1 = all of it
    samples: int  # stack samples of this rank in the phase, in excess of the others'
    where: Location | None  # the user's line that was seen most, in excess of the others


@dataclass(frozen=True)
class LateArrivals:
    """How often and how much one rank arrives last at the collectives of a step.

    Per step the collective with the longest caused delay (last minus second-last arrival)
    counts, so that a rank that is late at every bucket is not counted once a bucket.
    """

    last_share: float  # share of counted steps in which this rank was the last
    caused_delay_ms: float  # mean per counted step, 0 in steps where another rank was last
    typical_delay_ms: float  # median over counted steps, likewise
    lateness_ms: float  # mean own - median arrival of the others, over steps where it was last
    run_queue_ms: float  # of that, waiting for a CPU beyond the median of the others
    excesses: tuple[PhaseExcess, ...]  # largest first


@dataclass(frozen=True)
class RankStats:
    """One rank over the counted steps.

    `times` is None where none of its steps is counted: then nothing of it was measured. `late` is
    None where arrivals cannot be compared.
    """

    rank: int
    host: str
    steps: int
    times: PhaseTimes | None
    late: LateArrivals | None

    def times_by_name(self) -> dict[str, float | None]:
        """All terms; each is None where nothing was measured."""
        return {field.name: getattr(self.times, field.name, None) for field in fields(PhaseTimes)}


@dataclass(frozen=True)
class NamedTime:
    """What the user's spans of one name take, in mean milliseconds a counted step of each rank."""

    name: str
    ms_by_rank: dict[int, float]  # ranks that have such spans


LATENCY_ONLY: Final = 100.0  # times the bytes could have moved meanwhile: latency is all there is


@dataclass(frozen=True)
class LinkFit:
    """What the all-reduces of a step cost on the network, with waiting for ranks taken out.

    `busy_ms` is the time per step in which at least one all-reduce was in transfer, all ranks
    having arrived. `alpha_ms` is what one small message takes, None where none was seen.
    `beta_gb_per_s`, GB = 10^9 bytes, is the rate at which the step's messages, begun as recorded,
    are under way for so long; None where alpha alone takes that time. `busbw_gb_per_s` is beta
    times 2(n-1)/n, the factor of nccl-tests for all-reduce. `latency_share` is the part of
    `busy_ms` in which no bytes move.
    """

    alpha_ms: float | None
    beta_gb_per_s: float | None
    busbw_gb_per_s: float | None
    latency_share: float | None
    busy_ms: float
    collectives_per_step: float
    bytes_per_step: float
    at_once: int = 2  # collectives of one group that the backend runs together

    @property
    def as_link(self) -> Link | None:
        """For the replay; at a rate that is sure to be there where alpha takes all the time."""
        if self.alpha_ms is None or not self.busy_ms:
            return None
        least = LATENCY_ONLY * self.bytes_per_step / self.busy_ms
        rate = self.beta_gb_per_s * 1e6 if self.beta_gb_per_s else least
        return Link(self.alpha_ms, rate, self.at_once)


@dataclass(frozen=True)
class StepRange:
    """Which synchronised steps were counted, and which were left out as warm-up."""

    warmup: int
    counted: int
    first_sync: int
    last_sync: int


@dataclass(frozen=True)
class StuckCollective:
    """A collective in which ranks stand at the end of the record, and others never came to."""

    op: str
    seq: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True)
class MixedCall:
    """What some ranks called as the collective in which all of a group stand."""

    ranks: tuple[int, ...]
    op: str
    nbytes: int  # 0 where ranks may differ in it
    site: Site | None  # of the first of them


@dataclass(frozen=True)
class MixedCollective:
    """Different calls with one number at the end of the record, those of the most ranks first."""

    seq: int
    calls: tuple[MixedCall, ...]


class Cause(StrEnum):
    """Why a rank that ended took others with it."""

    ERROR = "error"  # it raised, or ended itself with a status other than 0
    SILENCE = "silence"  # it noted no end: SIGKILL, `os._exit`, a crash in native code
    LEFT = "left"  # it came to its end before the others
    HANGUP = "hangup"  # SIGHUP ended it


@dataclass(frozen=True)
class EarlyEnd:
    """The end of a rank, or of several alike, for which others failed."""

    cause: Cause
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    step: int  # steps that the rank had completed
    last: str  # what the rank recorded last
    end: End | None = None  # of the first culprit, as it noted it


@dataclass(frozen=True)
class WaitedInVain:
    """Ranks that gave up waiting in a collective, and those that SIGTERM then found elsewhere."""

    waiting: tuple[int, ...]
    said: str  # by the first of them, in torch's words
    missing: tuple[int, ...]
    where: tuple[Location, ...]


@dataclass(frozen=True)
class Analysis:
    """All of a run that a check may ask for."""

    run: Run
    tables: Tables
    world_size: int
    steps: StepRange
    ranks: tuple[RankStats, ...]
    link: LinkFit | None
    stuck: tuple[StuckCollective, ...]
    early_end: EarlyEnd | None
    in_vain: WaitedInVain | None
    unfinished: tuple[str, ...]  # how the record ends, where nobody closed it
    cost_ms_per_step: float | None  # what the recorder itself took, mean over ranks; see analyze
    named: tuple[NamedTime, ...]  # largest first
    models: tuple[ModelGroup, ...] = ()
    waiting: tuple[Waiting, ...] = ()  # each cause once, in the order of what it costs
    frontier: Frontier | None = None
    efficiency: Efficiency | None = None
    gains: Gains = NO_GAINS
    calls: StepCalls | None = None
    mixed: tuple[MixedCollective, ...] = ()  # one a group at most

    @property
    def has_all_ranks(self) -> bool:
        """Whether every rank of the job was read."""
        return len(self.run.ranks) == self.world_size

    @property
    def moved_by_the_cpu(self) -> bool:
        """gloo between ranks that talk over loopback: transfers compete with compute."""
        networks = {trace.info.network_id for trace in self.run.ranks}
        return self.run.info.backend == "gloo" and len(networks) == 1

    @property
    def times(self) -> tuple[PhaseTimes, ...]:
        """Of the ranks that were measured."""
        return tuple(rank.times for rank in self.ranks if rank.times is not None)

    @property
    def step_ms(self) -> float | None:
        """Mean step of the job: ranks of one job share it, so the mean over ranks."""
        steps = [times.step_ms for times in self.times]
        return sum(steps) / len(steps) if steps else None
