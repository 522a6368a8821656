"""What the script's own collectives and losses leave in the facts of one real rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn import functional as with_gradient
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ddpdoctor.recorder.exchanged import _MOST_LINES
from tests.recorder.test_modelfacts import Branch, Rank, net, rank, train

__all__ = ["rank"]  # the fixture


def test_a_total_is_looked_at_at_some_calls_and_the_next(rank: Rank) -> None:
    total = torch.zeros(1, dtype=torch.float64)
    for _ in range(20):
        total += 1
        dist.all_reduce(total)

    summed = rank.facts().summed

    assert [(own.call, own.again) for own in summed] == [
        (1, False), (2, False), (3, True), (4, False), (5, True), (8, False), (9, True),
        (16, False), (17, True),
    ]  # fmt: skip
    assert summed[-1].values == (17.0,)
    assert summed[-1].site is not None
    assert summed[-1].site.function == "test_a_total_is_looked_at_at_some_calls_and_the_next"
    assert {own.model for own in summed} == {None}


def test_only_sums_of_a_few_numbers_are_looked_at(rank: Rank) -> None:
    dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX)
    dist.all_reduce(torch.ones(17))
    dist.all_reduce(torch.tensor([1.5, float("nan"), float("inf")]), op=dist.ReduceOp.SUM)
    dist.all_reduce(torch.tensor(True))
    dist.broadcast(torch.ones(1), 0)

    assert [own.values for own in rank.facts().summed] == [(1.5, None, None), (1.0,)]


def test_lines_without_end_are_looked_at_up_to_a_bound(rank: Rank) -> None:
    for line in range(2 * _MOST_LINES):
        code = compile("\n" * line + "dist.all_reduce(torch.ones(1))", __file__, "exec")
        exec(code, {"dist": dist, "torch": torch})  # noqa: S102

    assert len(rank.facts().summed) == _MOST_LINES


def test_what_becomes_of_the_gradients_after_a_sum(rank: Rank) -> None:
    model = rank.wrap(net())

    def clip(_step: int) -> None:
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        total = sum(p.grad.square().sum() for p in model.parameters())
        dist.all_reduce(total)
        for parameter in model.parameters():
            parameter.grad.mul_(0.25)

    train(model, 9, clip)
    facts = rank.facts()

    in_steps = [own for own in facts.summed if own.model == 0]
    assert [own.sync for own in in_steps] == [1, 2, 4, 8]
    assert all(abs(ratio - 0.25) < 1e-6 for own in in_steps for ratio in own.ratios)
    assert {round(ratio, 6) for own in facts.rescaled for ratio in own.ratios} == {0.125}


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_gathers_without_gradient_between_forward_and_backward(rank: Rank) -> None:
    model = rank.wrap(net())
    everyones = [torch.zeros(8, 2)]
    for _ in range(8):
        x = torch.ones(8, 4)
        dist.all_gather([torch.zeros(8, 4)], x)
        features = model(x)
        dist.all_gather(everyones, features)
        dist.all_gather(everyones, features.detach())
        dist.all_gather([torch.zeros(1)], features.mean()[None])
        with torch.no_grad():
            dist.all_gather(everyones, features)
        with_gradient.all_gather(features)
        features.mean().backward()
        dist.all_gather(everyones, features)

    gathered = rank.facts().gathered

    assert [own.call for own in gathered] == [1, 2, 4, 8]
    assert {own.shape for own in gathered} == {"8x2"}


def test_losses_of_the_reductions_that_are_looked_at(rank: Rank) -> None:
    model = rank.wrap(net())
    train(model, 9, loss=lambda y: 3 * F.cross_entropy(y, torch.tensor([0, 1, -100, 0] * 2)))

    losses = rank.facts().losses

    assert [sync for _, sync in losses] == [1, 2, 4, 8]
    (term,) = losses[0, 8].terms
    assert (term.factors, term.divided_by, term.is_mean) == ((3.0,), 6.0, True)
    assert losses[0, 8].forwards == 1


def test_a_forward_that_computes_the_loss(rank: Rank) -> None:
    class Learner(Branch):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(super().forward(x), x)

    train(rank.wrap(Learner(), find_unused_parameters=True), 2, loss=lambda y: y / 2)

    (term,) = rank.facts().losses[0, 2].terms
    assert (term.factors, term.divided_by) == ((0.5,), 32.0)


def test_backwards_within_a_backward_are_counted(rank: Rank) -> None:
    class Twice(Branch):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.a, x.requires_grad_(), use_reentrant=True)
            return self.b(checkpoint(self.a, x, use_reentrant=True))

    train(rank.wrap(Twice()), 2)
    train(rank.wrap(net()), 2)

    samples = rank.facts().samples
    assert [samples[0, 1].nested, samples[0, 2].nested, samples[1, 2].nested] == [2, 2, 0]


def test_gradients_that_are_added_to_reduced_ones(rank: Rank) -> None:
    model = rank.wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for micro in range(8):
        loss = model(torch.randn(8, 4)).square().mean()
        with model.no_sync():
            loss.backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    samples = rank.facts().samples

    assert [samples[0, sync].accumulated for sync in (1, 2, 4, 8)] == [False, True, True, True]
    assert samples[0, 8].late_no_sync == 8


def test_a_step_on_gradients_that_were_reduced_in_part(rank: Rank) -> None:
    model = rank.wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for micro in range(8):
        loss = model(torch.randn(8, 4)).square().mean()
        model.require_backward_grad_sync = micro % 4 == 3
        loss.backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    own = rank.facts().unsynced[0]
    assert (own.partly, own.steps, own.forwards) == (True, 2, 8)


def test_eval_of_the_module_within_is_an_evaluation(rank: Rank) -> None:
    model, other = rank.wrap(net()), nn.BatchNorm1d(4)
    train(model, 3)
    other.eval()
    model.module[1].eval()
    assert model.module.eval() is model.module

    evaluations = rank.facts().evaluations

    assert {sync: own.wrapped for (_, sync), own in evaluations.items()} == {3: False}


def test_a_forward_of_the_wrapped_model_after_that_counts(rank: Rank) -> None:
    model = rank.wrap(net())
    train(model, 3)
    model.module.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))

    evaluations = rank.facts().evaluations

    assert {sync: own.wrapped for (_, sync), own in evaluations.items()} == {3: True}


def test_what_is_patched_is_restored(rank: Rank) -> None:
    assert torch.autograd.backward.__module__ == "torch.autograd"
    patched, evaluates = torch.autograd.backward, nn.Module.eval
    rank.recorder.close()

    assert torch.autograd.backward is not patched
    assert nn.Module.eval is not evaluates
    assert torch.autograd.backward.__code__.co_filename.endswith("autograd/__init__.py")
