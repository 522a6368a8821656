"""Uses that differ in the model, its DDP settings and what goes on in forward and backward."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.checkpoint import checkpoint

from .registry import STEPS, Net, Outcome, batch, ddp, sgd, train, trained, use

SLOW_FORWARD_S, SLOW_BACKWARD_S = 0.03, 0.04


@use()
def plain() -> Outcome:
    return trained(ddp())


@use()
def static_graph() -> Outcome:
    return trained(ddp(static_graph=True))


@use()
def gradient_as_bucket_view() -> Outcome:
    return trained(ddp(gradient_as_bucket_view=True))


class _Branches(Net):
    """Uses its second layer in every other forward."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        x = self.first(x)
        return self.second(x) if self.forwards % 2 else x


@use()
def find_unused_parameters() -> Outcome:
    return trained(ddp(_Branches(), find_unused_parameters=True))


class _Looked(Net):
    """Its first layer is a table, whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(64, 64, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x[0].abs() * 10).long())


@use(buckets=False)
def sparse_gradients() -> Outcome:
    return trained(ddp(_Looked()))


class _Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


@use()
def buffers_broadcast_in_every_forward() -> Outcome:
    return trained(ddp(_Normed(), broadcast_buffers=True))


class _Checkpointed(Net):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return checkpoint(self.second, x, use_reentrant=self.reentrant)


@use()
def checkpoint_reentrant() -> Outcome:
    return trained(ddp(_Checkpointed(reentrant=True), static_graph=True))


@use()
def checkpoint_not_reentrant() -> Outcome:
    return trained(ddp(_Checkpointed(reentrant=False)))


@use()
def compiled_within_ddp() -> Outcome:
    torch._dynamo.reset()
    return trained(ddp(torch.compile(Net(), backend="aot_eager"), bucket_cap_mb=25))


@use()
def compiled_around_ddp() -> Outcome:
    torch._dynamo.reset()
    return trained(torch.compile(ddp(bucket_cap_mb=25), backend="aot_eager"))


@use(buckets=False)
def hook_of_torch() -> Outcome:
    model = ddp()
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(model)


@use(buckets=False)
def hook_with_several_all_reduces() -> Outcome:
    model = ddp(bucket_cap_mb=25)  # one bucket: with more it deadlocks on gloo without us, too
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model)


@use()
def hook_in_c_plus_plus() -> Outcome:
    model = ddp()
    model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    return trained(model)


@use()
def autocast_bf16() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use()
def scaler_that_skips_a_step() -> Outcome:
    """The second gradient is infinite on every rank: no optimizer step runs."""
    model = ddp()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    outcome = Outcome()
    outcome.keep("model", model)
    outcome.tensors["scale"] = torch.tensor(scaler.get_scale())
    return outcome


@use()
def two_forwards_before_a_backward() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs = [model(batch(step)), model(batch(step + 100))]
        torch.stack(outputs).square().mean().backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


class _Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("this backward refuses")


class _SometimesRefuses(Net):
    refuses = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_Refuses.apply(self.first(x)) if self.refuses else x)


@use()
def exception_caught_in_backward() -> Outcome:
    """Before any gradient is ready, on all ranks; then training goes on."""
    model = ddp(_SometimesRefuses(), find_unused_parameters=False)
    optimizer = sgd(model)
    outcome = Outcome()
    train(model, optimizer, steps=STEPS // 2)
    model.module.refuses = True
    try:
        with model.no_sync():
            model(batch(7)).sum().backward()
    except ArithmeticError as error:
        outcome.errors.append(str(error))
    model.module.refuses = False
    optimizer.zero_grad()
    train(model, optimizer, steps=STEPS // 2)
    outcome.keep("model", model)
    return outcome


@use()
def evaluation_and_generation_between_steps() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        model.eval()
        with torch.no_grad():
            text = batch(step)
            for _ in range(3):  # each forward goes on from the last
                text = model(text)
            outcome.tensors[f"generated.{step}"] = model.module(text)
        with torch.inference_mode():
            outcome.tensors[f"evaluated.{step}"] = model(batch(step)).clone()
        model.train()
    outcome.keep("model", model)
    return outcome


@use()
def gradient_penalty() -> Outcome:
    """`autograd.grad` runs through the model and reduces nothing; the backward after it does."""
    model = ddp()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = batch(step).requires_grad_()
        output = model(inputs)
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        (output.square().mean() + gradient.square().mean()).backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


class _Sleeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_BACKWARD_S)
        return gradient


class _Slow(Net):
    """Sleeps between its layers: when its backward does, the first bucket is under way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(_Sleeps.apply(torch.relu(self.first(x))))


@use()
def with_torchs_own_logging() -> Outcome:
    """DDP's logger tells of each step when the next one's forward begins."""
    model = ddp(_Slow())
    model.reducer._set_ddp_runtime_logging_sample_rate(1)
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        outcome.logged.append(model._get_ddp_logging_data())
        loss.backward()
        optimizer.step()
    outcome.keep("model", model)
    return outcome
