"""What is recorded of the models: facts of their making, and samples of their numbers. No I/O.

A digest stands for a few elements of a tensor, spread over it; equal digests say that these
elements are equal, and nothing of the others. Tensors are told by their place among the watched
ones of their model, which is the same on ranks that built the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from ddpdoctor.events import Count, Level, Site

MOST_WATCHED: Final = 1024  # tensors of a kind in a model that are named and looked at
MOST_NAME: Final = 200  # characters of a tensor's name that are kept
MOST_MODELS: Final = 64  # of a process that are recorded
MOST_SUMMED: Final = 16  # numbers of a tensor that the script reduces; more are not kept
Digest = Annotated[int, Meta(ge=0, lt=2**62)]
Item = TypeVar("Item")
Few = Annotated[tuple[Item, ...], Meta(max_length=MOST_WATCHED)]
Name = Annotated[str, Meta(max_length=4 * MOST_NAME)]
Names = Few[Name]
Settings = Annotated[dict[Name, Name], Meta(max_length=64)]
ModelNumber = Annotated[int, Meta(ge=0, lt=MOST_MODELS)]


@dataclass(frozen=True)
class WatchedTensor:
    """A parameter or buffer: its place among all of its model, and what it is."""

    index: Count
    name: Name
    shape: Name
    dtype: Name
    trainable: bool = False
    reduced: bool = False  # DDP reduces its gradient


@dataclass(frozen=True)
class ModelInfo:
    """One model when it was wrapped. The digests cover all tensors, the lists a spread of them."""

    model: ModelNumber  # in the order in which models were wrapped
    name: Name  # class of the module within
    group: Name  # over which it reduces
    parameter_count: Count
    buffer_count: Count
    elements: Count  # of all parameters
    parameter_digest: Digest  # of names, shapes, types and requires_grad, in order
    buffer_digest: Digest
    arguments: Settings  # those of DistributedDataParallel
    parameters: Few[WatchedTensor]
    buffers: Few[WatchedTensor]
    measured: bool = True  # False: its tensors are not on the CPU, so their numbers are not read


@dataclass(frozen=True)
class OptimizerInfo:
    """An optimizer when it stepped first: its class and the settings of its groups."""

    optimizer: ModelNumber  # in the order of first steps
    name: Name
    models: Few[ModelNumber]  # whose parameters it holds
    settings: Settings
    outside: Count = 0  # parameters that require a gradient and belong to no wrapped model


@dataclass(frozen=True)
class Digests:
    """Digests and sizes (mean magnitudes) of tensors; None where one could not be read.

    A size that is not finite is None, with a digest beside it.
    """

    tensors: Few[Count] = ()  # places among the watched ones
    digests: Few[Digest | None] = ()
    sizes: Few[Level | None] = ()

    def __post_init__(self) -> None:
        if not len(self.tensors) == len(self.digests) == len(self.sizes):
            raise ValueError("as many digests and sizes as tensors are expected")


@dataclass(frozen=True)
class ModelSample:
    """A model at the end of the backward that was its `sync`-th with a reduction.

    The gradients are the reduced ones; parameters are as that backward found them. `unused` are
    watched parameters that took no part in it, on this rank; `unreduced` are those that have a
    gradient and were not handed to the reduction.
    """

    model: ModelNumber
    sync: Count  # of this model
    step: Count
    forwards: Count  # of the model in training, so far
    optimizer_steps: Count  # on its parameters, so far
    parameters: Digests = field(default_factory=Digests)
    gradients: Digests = field(default_factory=Digests)
    looked_at: Few[Count] = ()  # watched parameters whose use was looked at
    unused: Few[Count] = ()
    unreduced: Few[Count] = ()
    buffers: Digests = field(default_factory=Digests)
    rates: Few[Level] = ()  # learning rates of the groups
    accumulated: bool = False  # to gradients reduced before, on which no step was made yet
    late_no_sync: Count = 0  # backwards so far that reduced although no_sync was on: too late
    nested: Count = 0  # backwards that ran within this one, as reentrant checkpointing does


@dataclass(frozen=True)
class LossTerm:
    """A term of a loss, as the graph before a backward tells."""

    name: Name  # of autograd's node
    factors: Few[Level]  # numbers that multiply it
    divided_by: Level | None  # what its own reduction divides by: 1 of a sum; None: not known
    is_mean: bool


@dataclass(frozen=True)
class Loss:
    """The loss whose backward was the model's `sync`-th with a reduction."""

    model: ModelNumber
    sync: Count
    forwards: Count  # whose gradients were reduced together
    terms: Few[LossTerm]
    site: Site | None = None  # where the script multiplies a loss by the number of ranks


@dataclass(frozen=True)
class Summed:
    """A few numbers that the script summed over ranks, as this rank gave them.

    With a `model` it was between the `sync`-th reduction of that and the optimizer step, and
    `ratios` is what gradients were multiplied by from then to the step.
    """

    group: Name
    seq: Count
    call: Count  # of the line, from 1
    again: bool  # the tensor of the call looked at before it, when it was given next
    values: Annotated[tuple[Level | None, ...], Meta(max_length=MOST_SUMMED)]
    site: Site | None
    model: ModelNumber | None = None
    sync: Count = 0
    ratios: Few[Level] = ()


@dataclass(frozen=True)
class Gathered:
    """An all_gather, between forward and backward, of a tensor that requires a gradient.

    Its result carries none.
    """

    call: Count  # of the line, from 1
    sync: Count
    shape: Name
    site: Site | None


@dataclass(frozen=True)
class GradientTimes:
    """When the gradients of one backward were ready, in the order in which they were.

    Microseconds since DDP had prepared for the backward, at the end of the forward.
    """

    model: ModelNumber
    sync: Count
    places: Few[Count]  # among the watched parameters
    ready_us: Few[Count]

    def __post_init__(self) -> None:
        if len(self.places) != len(self.ready_us):
            raise ValueError("as many times as places are expected")


@dataclass(frozen=True)
class EvaluationSample:
    """The buffers with which a model was evaluated after its `sync`-th reduction."""

    model: ModelNumber
    sync: Count
    buffers: Digests
    wrapped: bool  # by the DDP model's forward; False: it was only set to evaluate


@dataclass(frozen=True)
class Rescaled:
    """Gradients when the optimizer began, as multiples of those that the reduction left."""

    model: ModelNumber
    sync: Count
    forwards: Count  # whose gradients were reduced together
    ratios: Few[Level]


@dataclass(frozen=True)
class NonFinite:
    """A NaN or infinity at a backward. None: not looked at.

    `output` is the gradient of this rank's loss by the model's output: it is this rank's alone.
    `reduced` are the gradients after the reduction, which all ranks share.
    """

    model: ModelNumber
    sync: Count
    step: Count
    output: bool | None
    reduced: bool | None
    parameters: Names = ()  # with a gradient that is not finite, the last in the model first
    parameter_count: Count = 0
    weights: bool | None = None  # a parameter itself was not finite already
    stepped: bool = True  # an optimizer step followed


@dataclass(frozen=True)
class Unsynced:
    """Optimizer steps with gradients that were not reduced; a later one replaces it.

    The digests are as the last of them left the tensors.
    """

    model: ModelNumber
    first_step: Count
    sync: Count  # reductions of the model before the first
    steps: Count
    forwards: Count  # of the wrapped model that these steps used
    optimizer_steps: Count  # all so far
    site: Site | None
    parameters: Digests = field(default_factory=Digests)
    gradients: Digests = field(default_factory=Digests)
    partly: bool = False  # a part of the gradients was reduced before


@dataclass(frozen=True)
class BatchRun:
    """Consecutive reductions whose batches were of one size on this rank."""

    sync: Count  # the first
    syncs: Count
    samples: Count  # of a reduction: the first dimension of the first tensor given to the model
    elements: Count  # of that tensor
    forwards: Count


@dataclass(frozen=True)
class Batches:
    """Sizes of what was given to a model in training. Each line adds to those before."""

    model: ModelNumber
    runs: Few[BatchRun]


@dataclass(frozen=True)
class UnusedSearch:
    """What `find_unused_parameters=True` has cost at the ends of forwards; a later one replaces
    it. With it goes what DDP does there anyway, some tens of microseconds."""

    model: ModelNumber
    searches: Count
    spent_ns: Count


class ChangeKind(StrEnum):
    """What happened to a parameter after its model was wrapped."""

    REPLACED = "replaced"
    FROZEN = "frozen"
    UNFROZEN = "unfrozen"
    CAST = "cast"  # to another type or device


@dataclass(frozen=True)
class ModelChange:
    """Parameters of a wrapped model that are not what they were."""

    model: ModelNumber
    sync: Count
    kind: ChangeKind
    names: Names
    count: Count


class FailureKind(StrEnum):
    """An error of DDP's reducer or of autograd that ended the training."""

    UNUSED = "unused"
    GRAPH_CHANGED = "graph-changed"  # under static_graph
    READY_TWICE = "ready-twice"
    IN_PLACE = "in-place"


@dataclass(frozen=True)
class ModelFailure:
    """Such an error, and the parameters that its text names by their places."""

    kind: FailureKind
    model: ModelNumber | None
    sync: Count
    names: Names
    site: Site | None = None


@dataclass
class ModelFacts:
    """All model facts of one rank."""

    models: dict[int, ModelInfo] = field(default_factory=dict)
    optimizers: dict[int, OptimizerInfo] = field(default_factory=dict)
    samples: dict[tuple[int, int], ModelSample] = field(default_factory=dict)
    evaluations: dict[tuple[int, int], EvaluationSample] = field(default_factory=dict)
    rescaled: list[Rescaled] = field(default_factory=list)
    losses: dict[tuple[int, int], Loss] = field(default_factory=dict)
    summed: list[Summed] = field(default_factory=list)
    gathered: list[Gathered] = field(default_factory=list)
    non_finite: list[NonFinite] = field(default_factory=list)
    unsynced: dict[int, Unsynced] = field(default_factory=dict)
    batches: dict[int, list[BatchRun]] = field(default_factory=dict)
    changes: list[ModelChange] = field(default_factory=list)
    failures: list[ModelFailure] = field(default_factory=list)
    gradient_times: dict[tuple[int, int], GradientTimes] = field(default_factory=dict)
    searches: dict[int, UnusedSearch] = field(default_factory=dict)

    def add(self, fact: ModelFact) -> None:
        """Take in one. Of what is kept by number a later one replaces the earlier."""
        match fact:
            case ModelInfo():
                self.models[fact.model] = fact
            case OptimizerInfo():
                self.optimizers[fact.optimizer] = fact
            case ModelSample():
                self.samples[fact.model, fact.sync] = fact
            case EvaluationSample():
                self.evaluations[fact.model, fact.sync] = fact
            case Loss():
                self.losses[fact.model, fact.sync] = fact
            case GradientTimes():
                self.gradient_times[fact.model, fact.sync] = fact
            case Unsynced():
                self.unsynced[fact.model] = fact
            case UnusedSearch():
                self.searches[fact.model] = fact
            case Batches():
                self.batches.setdefault(fact.model, []).extend(fact.runs)
            case _:
                self._listed(fact)

    def _listed(
        self, fact: Rescaled | Summed | Gathered | NonFinite | ModelChange | ModelFailure
    ) -> None:
        match fact:
            case Rescaled():
                self.rescaled.append(fact)
            case Summed():
                self.summed.append(fact)
            case Gathered():
                self.gathered.append(fact)
            case NonFinite():
                self.non_finite.append(fact)
            case ModelChange():
                self.changes.append(fact)
            case ModelFailure():
                self.failures.append(fact)


ModelFact = (
    ModelInfo | OptimizerInfo | ModelSample | EvaluationSample | Rescaled | Loss | Summed
    | Gathered | NonFinite | Unsynced | Batches | ModelChange | ModelFailure | GradientTimes
    | UnusedSearch
)  # fmt: skip
MODEL_FACTS: Final[dict[str, type[ModelFact]]] = {
    "model": ModelInfo,
    "optimizer": OptimizerInfo,
    "model_sample": ModelSample,
    "evaluation": EvaluationSample,
    "rescaled": Rescaled,
    "loss": Loss,
    "summed": Summed,
    "gathered": Gathered,
    "non_finite": NonFinite,
    "unsynced": Unsynced,
    "batches": Batches,
    "model_change": ModelChange,
    "model_failure": ModelFailure,
    "gradient_times": GradientTimes,
    "unused_search": UnusedSearch,
}
