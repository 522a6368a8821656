"""Uses that differ in the training loop: accumulation, several models, other optimizers."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from .registry import STEPS, Outcome, batch, ddp, sgd, train, trained, use


@use()
def no_sync_and_accumulation() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for micro in range(2):
                model(batch(10 * step + micro)).square().mean().backward()
        model(batch(10 * step + 9)).square().mean().backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use()
def accumulation_by_require_backward_grad_sync() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(3):
            model.require_backward_grad_sync = micro == 2
            model(batch(10 * step + micro)).square().mean().backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use(steps=2 * STEPS)
def two_losses_in_a_step() -> Outcome:
    """Each with a forward of its own, both reduced: two steps, since the second is not foreseen."""
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        model(batch(step + 50)).abs().mean().backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use(models=2)
def two_models_in_one_backward() -> Outcome:
    """The second model's gradients go on into the first; both reduce their own."""
    maker, judge = ddp(), ddp(torch.nn.Linear(64, 128))
    optimizer = torch.optim.SGD([*maker.parameters(), *judge.parameters()], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        judge(maker(batch(step))).square().mean().backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("maker", maker)
    outcome.keep("judge", judge)
    return outcome


@use(syncs=2 * STEPS)
def two_models_as_in_a_gan() -> Outcome:
    """Two models and two optimizers take turns within a step of the loop."""
    maker, judge = ddp(), ddp()
    makers, judges = sgd(maker), sgd(judge)
    for step in range(STEPS):
        judges.zero_grad()
        made = maker(batch(step))
        judge(made.detach()).square().mean().backward()
        judges.step()
        makers.zero_grad()
        for parameter in judge.parameters():
            parameter.requires_grad_(False)
        judge.module(made).mean().backward()
        for parameter in judge.parameters():
            parameter.requires_grad_(True)
        makers.step()
    outcome = Outcome()
    outcome.keep("maker", maker)
    outcome.keep("judge", judge)
    return outcome


@use()
def several_optimizers() -> Outcome:
    model = ddp()
    optimizers = [sgd(model.module.first), torch.optim.AdamW(model.module.second.parameters())]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use(syncs=3 * STEPS)
def lbfgs_runs_its_closure_several_times() -> Outcome:
    model = ddp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=0)
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use()
def zero_redundancy_optimizer() -> Outcome:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when imported

    model = ddp()
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    return trained(model, optimizer)


def _uneven_inputs() -> range:
    return range(STEPS - dist.get_rank())


@use(less_on_rank_1=1)
def join_of_uneven_inputs() -> Outcome:
    """Rank 1 has one batch less and shadows the others' collectives."""
    model = ddp()
    optimizer = sgd(model)
    with Join([model]):
        for step in _uneven_inputs():
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use()
def one_model_beside_another_that_is_not_ddp() -> Outcome:
    """Of the second model the gradients are reduced by hand."""
    model, other = ddp(), torch.nn.Linear(64, 64)
    optimizer, others = sgd(model), sgd(other)
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        others.zero_grad()
        other(batch(step)).square().mean().backward()
        for parameter in other.parameters():
            dist.all_reduce(parameter.grad)
        others.step()
    outcome = Outcome()
    outcome.keep("model", model)
    outcome.keep("other", other)
    return outcome
