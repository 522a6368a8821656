"""Trains many small models, each with a fault of its own: `torchrun ... model_faults.py [--fail]`.

No fault here ends the training or hangs; with `--fail` a last one does. The class of a model says
which fault it has.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ddpdoctor

STEPS = 12
rank = 0


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def batch(step: int, size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 8, generator=generator)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr)


def train(model, optimizer, steps: int = STEPS, before_step=lambda step: None) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        before_step(step)
        optimizer.step()


class LoadsOnRank0(Net):
    """DD501: a checkpoint is loaded after wrapping, and on rank 0 alone."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        if rank == 0:
            with torch.no_grad():
                model.module.last.weight.mul_(2)
        train(model, sgd(model))


class SkipsStep(Net):
    """DD501: rank 1 leaves out one optimizer step."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            if rank == 0 or step != 5:
                optimizer.step()


class ReentrantTwice(Net):
    """DD509: a layer passes two reentrant checkpoints, and its gradient is reduced too early."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)

    def forward(self, x):
        x = checkpoint(self.shared, x, use_reentrant=True)
        x = checkpoint(self.shared, x + 1, use_reentrant=True)
        return super().forward(x)

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step).requires_grad_()).square().mean().backward()
            optimizer.step()


class DropsLayer(Net):
    """DD503: rank 1 leaves out a layer in some steps."""

    drops = False

    def forward(self, x):
        return super().forward(x) if not self.drops else torch.relu(self.first(x)).mean(1)

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls(), find_unused_parameters=True)
        optimizer = sgd(model)
        for step in range(STEPS):
            model.module.drops = rank == 1 and step in (1, 3)
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()


class NeverUsesLast(Net):
    """DD503: DDP's error, which the script catches."""

    def forward(self, x):
        return self.first(x)

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        try:
            train(model, sgd(model))
        except RuntimeError:
            return


class EvaluatesInside(Net):
    """DD504: each rank evaluates with its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return super().forward(self.norm(x))

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        train(model, sgd(model))
        model.eval()
        with torch.no_grad():
            model.module(batch(0))
        model.train()


class EvaluatesWithin(EvaluatesInside):
    """DD504: the same, and it is the module within that is set to evaluate."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        train(model, sgd(model))
        model.module.eval()
        with torch.no_grad():
            model.module(batch(0))
        model.module.train()


class BadBatch(Net):
    """DD505: rank 1 has a NaN in one sample of step 5."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            x = batch(step)
            if rank == 1 and step == 5:
                x[3, 2] = float("nan")
            model(x).square().mean().backward()
            optimizer.step()


class SwallowsError(Net):
    """DD506: rank 1 catches an error before the backward of step 3, and goes on."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS + (rank == 1)):  # so that the last reduction has its partner
            optimizer.zero_grad()
            try:
                loss = model(batch(step)).square().mean()
                if rank == 1 and step == 3:
                    raise RuntimeError("out of memory")
                loss.backward()
            except RuntimeError:
                continue
            optimizer.step()


class DropsBatch(Net):
    """DD506: rank 1 leaves out a batch before the model sees it."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        data = TensorDataset(torch.arange(64.0 * 8).view(64, 8) / 512)
        sampler = DistributedSampler(data, shuffle=False)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        for epoch in range(2):
            for number, (x,) in enumerate(loader):
                if rank == 1 and epoch == 0 and number == 3:
                    continue
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        if rank == 1:  # so that the last reduction of rank 0 has its partner
            model(batch(0)).square().mean().backward()


class UnevenBatches(Net):
    """DD507: rank 0 averages over 2 samples, rank 1 over 18."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, 18 if rank else 2)).square().mean().backward()
            optimizer.step()


class UnevenTokens(Net):
    """DD507: of equally many tokens the loss ignores most on rank 0."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        labels = torch.zeros(32, dtype=torch.long)
        labels[4 if rank == 0 else 28 :] = -100
        for step in range(20):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch(step, 32)), labels).backward()
            optimizer.step()


class CallsInside(Net):
    """DD508: the loss comes from the module within."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            model.module(batch(step)).square().mean().backward()
            optimizer.step()


class NoSyncForward(Net):
    """DD508: no_sync around the forward, the backward outside of it."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            with model.no_sync():
                loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()


class LateNoSync(Net):
    """DD508: the last micro-batch is told to reduce after its forward, too late for it."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for micro in range(4 * STEPS):
            loss = model(batch(micro)).square().mean()
            model.require_backward_grad_sync = micro % 4 == 3
            loss.backward()
            if micro % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


class NoSyncInVain(Net):
    """DD204: no_sync around the backward alone does nothing."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for micro in range(2 * STEPS):
            loss = model(batch(micro)).square().mean()
            with model.no_sync():
                loss.backward()
            if micro % 2:
                optimizer.step()
                optimizer.zero_grad()


class CastAfterwards(Net):
    """DD508: a round trip through another type leaves DDP's hooks on what was."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        model.double().float()
        train(model, sgd(model))


class HeadOutside(Net):
    """DD508: the head was never wrapped."""

    @classmethod
    def run(cls) -> None:
        model, head = ddpdoctor.wrap(cls()), nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            head(model(batch(step))).square().mean().backward()
            optimizer.step()


class Unfreezes(Net):
    """DD509: a layer begins to learn after wrapping."""

    @classmethod
    def run(cls) -> None:
        inner = cls()
        inner.first.requires_grad_(False)
        model = ddpdoctor.wrap(inner)
        inner.first.requires_grad_(True)
        train(model, sgd(model))


class SumsAgain(Net):
    """DD510: gradients are summed over the ranks once more."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())

        def sum_gradients(_step: int) -> None:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)

        train(model, sgd(model), before_step=sum_gradients)


class TimesRanks(Net):
    """DD510: the loss is multiplied by the number of ranks."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model, 0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean() * dist.get_world_size()
            loss.backward()
            optimizer.step()


class SumsNorm(Net):
    """DD510: the norm of averaged gradients is summed over the ranks once more."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())

        def clip(_step: int) -> None:
            total = sum(parameter.grad.square().sum() for parameter in model.parameters())
            dist.all_reduce(total)
            for parameter in model.parameters():
                parameter.grad *= 1e-3 / total.sqrt()

        train(model, sgd(model), before_step=clip)


class Gathers(Net):
    """DD510: features are gathered without a gradient."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        optimizer = sgd(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            features = model(batch(step))
            everyones = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, features)
            (features @ torch.cat(everyones).t()).logsumexp(1).mean().backward()
            optimizer.step()


class Total:
    """DD510: a total is summed in place."""

    @classmethod
    def run(cls) -> None:
        total = torch.zeros(1, dtype=torch.float64)
        for _ in range(20):
            total += 8
            dist.all_reduce(total)


class OtherRate(Net):
    """DD405: the learning rate depends on the rank."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        train(model, sgd(model, 0.1 * (rank + 1)))


class OtherOrder(nn.Module):
    """DD405: layers of one shape are made in another order."""

    def __init__(self) -> None:
        super().__init__()
        for name in sorted(("left", "right"), reverse=rank == 1):
            setattr(self, name, nn.Linear(8, 8))

    def forward(self, x):
        return self.right(torch.relu(self.left(x)))

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls())
        train(model, sgd(model))


class ReadyTwice(ReentrantTwice):
    """DD509: the same with find_unused_parameters is an error, which ends the training."""

    @classmethod
    def run(cls) -> None:
        model = ddpdoctor.wrap(cls(), find_unused_parameters=True)
        model(batch(0).requires_grad_()).square().mean().backward()


FAULTS = (
    LoadsOnRank0, SkipsStep, ReentrantTwice, DropsLayer, NeverUsesLast, EvaluatesInside,
    EvaluatesWithin, BadBatch, SwallowsError, DropsBatch, UnevenBatches, UnevenTokens, CallsInside,
    NoSyncForward, LateNoSync, NoSyncInVain, CastAfterwards, HeadOutside, Unfreezes, SumsAgain,
    TimesRanks, SumsNorm, Gathers, Total, OtherRate, OtherOrder,
)  # fmt: skip


def main() -> None:
    global rank  # noqa: PLW0603
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    for fault in FAULTS:
        torch.manual_seed(0)
        fault.run()
        dist.barrier()
    if "--fail" in sys.argv:
        ReadyTwice.run()
    dist.destroy_process_group()


main()
