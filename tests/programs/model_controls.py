"""Trains many small models as they should be, in ways that resemble a fault."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import ddpdoctor

STEPS = 12
rank = 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def batch(step: int, size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 8, generator=generator)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def train(model, optimizer, between=lambda step: None) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        between(step)
        optimizer.step()


def plain() -> None:
    """Loaded on all ranks after wrapping, and clipped."""
    model = ddpdoctor.wrap(Net())
    with torch.no_grad():
        model.module.last.weight.mul_(2)
    train(model, sgd(model), lambda step: clip_grad_norm_(model.parameters(), 0.01))


def accumulating() -> None:
    """As many micro-batches as ranks, and the gradient divided by their number."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(step)).square().mean().backward()
        model(batch(step + 100)).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad /= 2
        optimizer.step()


def with_batch_norm() -> None:
    """Statistics differ between forwards, and the evaluation is by the wrapped model."""
    model = ddpdoctor.wrap(nn.Sequential(nn.BatchNorm1d(8), Net()))
    train(model, sgd(model))
    model.eval()
    with torch.no_grad():
        model(batch(0))
    model.train()
    if rank == 0:  # nobody to differ from
        model.eval()
        model.module(batch(1))
        model.train()
    train(model, sgd(model))


def scaled() -> None:
    """A scaler meets infinities, skips those steps on all ranks, and goes on."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(model(batch(step)).square().sum() * 100).backward()
        scaler.step(optimizer)
        scaler.update()


class Branches(Net):
    """Which layer it uses depends on the step, alike on all ranks."""

    uses_last = True

    def forward(self, x):
        return super().forward(x) if self.uses_last else self.first(x)


def branching() -> None:
    model = ddpdoctor.wrap(Branches(), find_unused_parameters=True)
    optimizer = sgd(model)
    for step in range(STEPS):
        model.module.uses_last = step % 3 != 1
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


class Checkpointed(Net):
    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=False)
        return self.last(checkpoint(self.first, x, use_reentrant=False))


def checkpointed() -> None:
    model = ddpdoctor.wrap(Checkpointed(), static_graph=True)
    train(model, sgd(model))


def compressed() -> None:
    model = ddpdoctor.wrap(Net(), gradient_as_bucket_view=True)
    model.register_comm_hook(None, fp16_compress_hook)
    train(model, sgd(model))


def two_models() -> None:
    """One learns against the other, each with an optimizer of its own."""
    maker = ddpdoctor.wrap(nn.Linear(8, 8))
    judge = ddpdoctor.wrap(nn.Linear(8, 1))
    of_maker, of_judge = sgd(maker), sgd(judge)
    for step in range(STEPS):
        of_judge.zero_grad()
        judge(maker(batch(step)).detach()).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(maker(batch(step))).mean().neg().backward()
        of_maker.step()


def head_by_hand() -> None:
    """A head outside the wrapped model whose gradients the script averages."""
    model, head = ddpdoctor.wrap(Net()), nn.Linear(4, 2)
    for parameter in head.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for step in range(STEPS):
        optimizer.zero_grad()
        head(model(batch(step))).square().mean().backward()
        for parameter in head.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()


def with_closure() -> None:
    model = ddpdoctor.wrap(nn.Linear(8, 4))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(batch(0)).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


class Odd(nn.Module):
    """Tied, frozen, empty and oddly named tensors, sparse gradients, buffers of other types."""

    def __init__(self) -> None:
        super().__init__()
        self.слово = nn.Embedding(16, 8, sparse=True)
        self.first = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.transposed = nn.Parameter(torch.randn(8, 4).t())
        self.register_buffer("空", torch.empty(0))
        for dtype in (torch.bool, torch.int8, torch.complex64, torch.bfloat16):
            self.register_buffer(f"of_{dtype}".replace(".", "_"), torch.ones(3, dtype=dtype))

    def forward(self, x):
        x = self.слово(x).mean(1)
        return self.frozen(self.tied(self.first(x))) @ self.transposed.t()


def odd() -> None:
    model = ddpdoctor.wrap(Odd(), forward_sync_buffers=False)
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step).abs().long().clamp(max=15)).square().mean().backward()
        optimizer.step()


def frozen_then_evaluated_on_rank_0() -> None:
    """Rank 0 evaluates by the wrapped model with gradients on, and the others do not."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if rank == 0 and step == 4:
            model.eval()
            for number in range(3):
                model.module(batch(number))
            model.train()


def with_metrics() -> None:
    """Sums of a loss, of counts and of a norm that was clipped by before, and a total's copy."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    total = torch.zeros(1, dtype=torch.float64)
    for step in range(3 * STEPS):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.01)
        mean = torch.stack([norm.detach(), loss.detach()])
        for number in (mean, norm, torch.tensor([8.0])):
            dist.all_reduce(number)
        optimizer.step()
        total += 8
        everyones = total.clone()
        dist.all_reduce(everyones)


def weighted_by_all_samples() -> None:
    """Batches of different sizes, and a loss that is divided by the samples of all ranks."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    for step in range(STEPS):
        size = 18 if rank else 2
        everyones = torch.tensor(float(size))
        dist.all_reduce(everyones)
        optimizer.zero_grad()
        output = model(batch(step, size))
        loss = cross_entropy(output, torch.zeros(size, dtype=torch.long), reduction="sum")
        (loss * dist.get_world_size() / everyones).backward()
        optimizer.step()


class _Gathered(torch.autograd.Function):
    """An all_gather with a gradient, as torch.distributed.nn has one."""

    @staticmethod
    def forward(ctx, features):
        everyones = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, features)
        return torch.cat(everyones)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[rank]


def contrasting() -> None:
    """Features are gathered with a gradient, detached, and within no_grad for a queue."""
    model = ddpdoctor.wrap(Net())
    optimizer = sgd(model)
    queue = [torch.zeros(8, 4) for _ in range(dist.get_world_size())]
    for step in range(STEPS):
        optimizer.zero_grad()
        features = model(batch(step))
        dist.all_gather(queue, features.detach())
        with torch.no_grad():
            dist.all_gather(queue, features)
        (features @ _Gathered.apply(features).t()).logsumexp(1).mean().backward()
        optimizer.step()


class Reentrant(Net):
    """Each layer passes one reentrant checkpoint."""

    def forward(self, x):
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return checkpoint(self.last, torch.relu(x), use_reentrant=True)


def evaluated_by_the_wrapped_model() -> None:
    """Although it is the module within that is set to evaluate."""
    model = ddpdoctor.wrap(nn.Sequential(nn.BatchNorm1d(8), Reentrant()))
    train(model, sgd(model))
    model.module.eval()
    with torch.no_grad():
        model(batch(0))
    model.module.train()


CONTROLS = (
    plain, accumulating, with_batch_norm, scaled, branching, checkpointed, compressed, two_models,
    head_by_hand, with_closure, odd, frozen_then_evaluated_on_rank_0, with_metrics,
    weighted_by_all_samples, contrasting, evaluated_by_the_wrapped_model,
)  # fmt: skip


def main() -> None:
    global rank  # noqa: PLW0603
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    for control in CONTROLS:
        torch.manual_seed(0)
        control()
        dist.barrier()
    torch.manual_seed(0)
    dist.destroy_process_group()


main()
