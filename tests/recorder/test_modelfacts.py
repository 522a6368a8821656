"""One rank that trains for real, in this process: what is told of its models."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddpdoctor.factsfile import read_facts
from ddpdoctor.modelevents import MOST_WATCHED, ChangeKind, FailureKind, ModelFacts
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.modelfacts import ALL_LOOKED_AT, LOOKED_AT_EVERY
from ddpdoctor.recorder.modellook import EVERY, FIRST, SPARSER_FROM, Schedule
from ddpdoctor.recorder.session import Recorder
from ddpdoctor.settings import settings


class Rank:
    """A recording of this process. `facts` ends it."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        guard = Guard(self.errors.append)
        self.recorder = Recorder(guard, settings(), torch.device("cpu"))

    def wrap(self, module: nn.Module, **arguments: object) -> DistributedDataParallel:
        model = DistributedDataParallel(module, **arguments)  # type: ignore[arg-type]
        self.recorder.add(model)
        return model

    def facts(self) -> ModelFacts:
        self.recorder.close()
        assert self.errors == []
        (path,) = self.recorder.folder.glob("*.facts.jsonl")
        facts = read_facts(path)
        assert facts.notes == []
        return facts.model


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setenv("DDPDOCTOR_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    made = Rank()
    yield made
    made.recorder.close()
    dist.destroy_process_group()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def train(
    model: nn.Module,
    steps: int,
    before_step: Callable[[int], object] = lambda step: None,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: y.square().mean(),
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss(model(batch)).backward()
        before_step(step)
        optimizer.step()


def test_reductions_are_looked_at_more_rarely_as_their_number_grows(rank: Rank) -> None:
    train(rank.wrap(net()), 2 * EVERY + 1)

    samples = rank.facts().samples

    assert [sync for _, sync in samples] == [1, 2, 4, 8, 16, 32, 64, EVERY, 2 * EVERY]
    assert all(sample.forwards == sync for (_, sync), sample in samples.items())
    assert len({sample.parameters.digests for sample in samples.values()}) == len(samples)
    assert samples[0, 2].rates == (0.1,)


def test_when_each_gradient_was_ready_is_kept_last_layer_first(rank: Rank) -> None:
    model = rank.wrap(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)))
    train(model, 8)
    facts = rank.facts()
    names = [told.name for told in facts.models[0].parameters]
    assert [sync for _, sync in facts.gradient_times] == [1, 2, 4, 8]
    for times in facts.gradient_times.values():
        layers = [names[place].split(".")[0] for place in times.places]
        assert layers == ["2", "2", "1", "1", "0", "0"]
        assert list(times.ready_us) == sorted(times.ready_us)
        assert times.ready_us[0] > 0


def test_the_search_for_unused_parameters_is_timed_where_there_is_one(rank: Rank) -> None:
    searching, other = rank.wrap(net(), find_unused_parameters=True), rank.wrap(net())
    train(searching, 6)
    train(other, 6)

    searches = rank.facts().searches

    assert list(searches) == [0]
    assert searches[0].searches == 6
    assert 0 < searches[0].spent_ns < 6e9


def test_a_late_gradient_that_is_not_finite_is_seen_within_four_steps(rank: Rank) -> None:
    model = rank.wrap(net())
    train(model, ALL_LOOKED_AT)
    train(model, 2 * LOOKED_AT_EVERY, loss=lambda y: y.sum() * math.nan)

    first = min(found.sync for found in rank.facts().non_finite)

    assert ALL_LOOKED_AT < first <= ALL_LOOKED_AT + LOOKED_AT_EVERY


def test_a_long_run_keeps_a_few_hundred_looks() -> None:
    schedule = Schedule()

    due = [sync for sync in range(1, 1_000_001) if schedule.is_due(sync)]

    assert len(due) < 500
    assert due[: FIRST.bit_length() - 1] == [1, 2, 4, 8, 16, 32, 64]
    assert max(b - a for a, b in pairwise(due)) <= 2**20 / SPARSER_FROM * EVERY


def test_recording_changes_no_bit_and_draws_no_random_number(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, plain = rank.wrap(net()), DistributedDataParallel(net())
    torch.manual_seed(1)
    train(recorded, 40)
    after_recorded = torch.get_rng_state()
    torch.manual_seed(1)
    train(plain, 40)

    assert torch.equal(after_recorded, torch.get_rng_state())
    pairs = zip(recorded.state_dict().values(), plain.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert rank.facts().models[0].name == "Sequential"


def test_what_a_model_is_made_of(rank: Rank) -> None:
    inner = net()
    inner[0].bias.requires_grad_(False)
    inner.register_buffer("名", torch.ones(2, dtype=torch.int8))
    rank.wrap(inner, find_unused_parameters=True)

    info = rank.facts().models[0]

    assert [tensor.name for tensor in info.parameters] == [
        "0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    assert (info.parameters[0].shape, info.parameters[0].dtype) == ("4x4", "float32")
    assert [tensor.name for tensor in info.parameters if not tensor.trainable] == ["0.bias"]
    assert info.buffers[0].name == "名"
    assert info.arguments["find_unused_parameters"] == "True"
    assert info.elements == 16 + 4 + 8 + 8 + 2


def test_of_many_tensors_a_spread_is_watched(rank: Rank) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(5000))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() * torch.cat(list(self.all))

    train(rank.wrap(Many()), 2)
    facts = rank.facts()

    info = facts.models[0]
    assert info.parameter_count == 5000
    assert 900 < len(info.parameters) <= MOST_WATCHED
    assert info.parameters[-1].index > 4990
    assert len(facts.samples[0, 1].parameters.tensors) <= 256


class Branch(nn.Module):
    """Uses its second layer when told to."""

    both = True

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) if self.both else self.a(x)


def test_parameters_without_part_in_a_backward(rank: Rank) -> None:
    model = rank.wrap(Branch(), find_unused_parameters=True)

    def second_layer_in_even_steps(step: int) -> None:
        model.module.both = (step + 1) % 2 == 0

    train(model, 8, second_layer_in_even_steps)
    samples = rank.facts().samples

    assert [samples[0, sync].unused for sync in (1, 2, 4, 8)] == [
        (), (2, 3), (2, 3), (2, 3),
    ]  # fmt: skip


def test_ddps_error_names_them(rank: Rank) -> None:
    model = rank.wrap(Branch())
    model.module.both = False
    with pytest.raises(RuntimeError, match="finished reduction"):
        train(model, 3)

    facts = rank.facts()

    (failure,) = facts.failures
    assert failure.kind is FailureKind.UNUSED
    assert failure.names == ("b.weight", "b.bias")
    assert facts.samples[0, 1].unused == (2, 3)


class Reentrant(Branch):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.a, x.requires_grad_(), use_reentrant=True)
        return self.b(checkpoint(self.a, x, use_reentrant=True))


def test_errors_in_backward_are_told_apart(rank: Rank) -> None:
    twice = rank.wrap(Reentrant(), find_unused_parameters=True)
    with pytest.raises(RuntimeError) as ready_twice:
        train(twice, 1)

    rank.recorder._models.failed(ready_twice.value)
    (failure,) = rank.facts().failures

    assert failure.kind is FailureKind.READY_TWICE
    assert failure.names == ("a.bias",)
    assert failure.site is not None
    assert failure.site.function == "train"


def test_errors_of_the_script_are_its_own(rank: Rank) -> None:
    rank.wrap(net())
    rank.recorder._models.failed(ValueError("modified by an inplace operation"))
    rank.recorder._models.failed(RuntimeError("no memory"))

    assert rank.facts().failures == []


def test_parameters_that_are_not_what_they_were(rank: Rank) -> None:
    inner = net()
    inner[0].bias.requires_grad_(False)
    model = rank.wrap(inner, find_unused_parameters=True)
    inner[0].bias.requires_grad_(True)
    inner[2].weight = nn.Parameter(torch.ones(2, 4))
    inner[1].weight.requires_grad_(False)
    train(model, 4)

    facts = rank.facts()

    assert {change.kind: change.names for change in facts.changes} == {
        ChangeKind.UNFROZEN: ("0.bias",),
        ChangeKind.REPLACED: ("2.weight",),
        ChangeKind.FROZEN: ("1.weight",),
    }


def test_hooks_that_a_cast_left_behind(rank: Rank) -> None:
    model = rank.wrap(net())
    model.double().float()
    train(model, 4)

    samples = rank.facts().samples

    assert [len(samples[0, sync].unreduced) for sync in (1, 2, 4)] == [6, 6, 6]


def test_steps_without_a_reduction_are_counted_with_their_line(rank: Rank) -> None:
    model = rank.wrap(net())
    train(model.module, 5)

    own = rank.facts().unsynced[0]

    assert (own.first_step, own.sync, own.steps, own.forwards) == (1, 0, 4, 0)
    assert own.site is not None
    assert own.site.function == "train"
    assert len(own.gradients.digests) == 6


def test_accumulating_is_no_step_without_a_reduction(rank: Rank) -> None:
    model = rank.wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        with model.no_sync():
            model(torch.ones(8, 4)).mean().backward()
        model(torch.ones(8, 4)).mean().backward()
        optimizer.step()

    facts = rank.facts()

    assert facts.unsynced == {}
    assert facts.samples[0, 4].forwards == 8
    first = facts.batches[0][0]
    assert (first.syncs, first.samples, first.forwards) == (1, 16, 2)


def test_what_a_model_leaves_that_is_gone_before_the_process_ends(rank: Rank) -> None:
    """As one that is made in a function: each of its batches is larger than the last."""

    def main() -> None:
        model = rank.wrap(net())
        for step in range(100):
            model(torch.randn(8 + step, 4)).sum().backward()

    main()
    gc.collect()

    batches = rank.facts().batches[0]

    assert [run.samples for run in batches] == list(range(8, 108))


def test_sizes_of_batches(rank: Rank) -> None:
    model = rank.wrap(net())
    for step in range(40):
        model(torch.ones(3 if step % 10 == 9 else 8, 4)).mean().backward()

    sizes = {run.sync + n: run.samples for run in rank.facts().batches[0] for n in range(run.syncs)}

    assert sizes == {sync: 3 if sync % 10 == 0 else 8 for sync in range(1, 41)}


def test_where_what_is_not_finite_began(rank: Rank) -> None:
    model = rank.wrap(net())
    steps = iter(range(9))
    train(model, 9, loss=lambda y: y.mean() * (math.nan if next(steps) == 6 else 1))

    first, *later = rank.facts().non_finite

    assert (first.sync, first.output, first.reduced, first.weights) == (7, True, True, False)
    assert first.parameters[0] == "2.bias"
    assert first.parameter_count == 6
    assert first.stepped
    assert [seen.weights for seen in later] == [True, True]


def test_steps_that_a_scaler_skipped(rank: Rank) -> None:
    model = rank.wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(12):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).square().sum() * 1000).backward()
        scaler.step(optimizer)
        scaler.update()

    seen = rank.facts().non_finite

    assert seen
    assert not any(each.stepped for each in seen)


def test_a_run_that_is_never_finite_is_told_in_few_lines(rank: Rank) -> None:
    train(rank.wrap(net()), 300, loss=lambda y: y.mean() * math.nan)

    assert 64 < len(rank.facts().non_finite) < 70


def test_evaluations_by_the_model_and_by_what_it_holds(rank: Rank) -> None:
    model = rank.wrap(net())
    train(model, 3)
    model.eval()
    model(torch.ones(8, 4))
    model.train()
    train(model, 2)
    model.eval()
    model.module(torch.ones(8, 4))
    model.train()
    train(model, 1)

    evaluations = rank.facts().evaluations

    assert {sync: each.wrapped for (_, sync), each in evaluations.items()} == {3: True, 5: False}


def test_parameters_outside_of_every_model(rank: Rank) -> None:
    model, head = rank.wrap(net()), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        head(model(torch.ones(8, 4))).mean().backward()
        optimizer.step()

    facts = rank.facts()

    assert facts.optimizers[0].outside == 2
    assert facts.models[1].name == ""
    assert len(facts.samples[1, 4].gradients.digests) == 2


def test_gradients_that_are_scaled_before_the_step(rank: Rank) -> None:
    model = rank.wrap(net())

    def triple(_step: int) -> None:
        for parameter in model.parameters():
            parameter.grad *= 3

    train(model, 8, triple)

    ratios = [ratio for each in rank.facts().rescaled for ratio in each.ratios]
    assert ratios == pytest.approx([3] * len(ratios))
    assert len(ratios) > 8


def test_a_model_that_is_gone_is_forgotten(rank: Rank) -> None:
    train(rank.wrap(net()), 2)
    train(rank.wrap(nn.Linear(4, 2)), 2)

    facts = rank.facts()

    assert sorted(facts.models) == [0, 1]
    assert {number for number, _ in facts.samples} == {0, 1}


@pytest.mark.parametrize("odd", ["sparse", "complex", "tied"])
def test_odd_tensors_are_read_or_left_out(rank: Rank, odd: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(8, 4, sparse=odd == "sparse")
            self.last = nn.Linear(4, 4)
            self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
            self.register_buffer("nothing", torch.empty(0))
            if odd == "tied":
                self.other = nn.Linear(4, 4)
                self.other.weight = self.last.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.last(self.words(x.long().clamp(0, 7)).mean(1))
            return y * self.phase[0] if odd == "complex" else y

    model = rank.wrap(Odd(), forward_sync_buffers=False)
    if odd == "tied":
        model.module.other.bias.requires_grad_(False)
    train(model, 1, loss=lambda y: y.abs().square().mean())

    sample = rank.facts().samples[0, 1]

    watched = {"sparse": 2, "complex": 3, "tied": 3}  # the sparse gradient cannot be read
    assert len(sample.gradients.tensors) == watched[odd]
    assert sample.buffers.tensors == (0,)
