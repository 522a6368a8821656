"""A small DDP training with a fault in it, on the CPU: `torchrun --nproc-per-node 2 train.py`.

`--fault` makes rank 1 slow in one place by `--late-ms` a step, or has it hang. The numbers it
learns mean nothing; where the time goes is the point.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULTS = ("none", "input", "forward", "backward", "optimizer", "between", "hang")
HANGS_AT = 25  # the step in which rank 1 stops taking part


def late(place: str, options: argparse.Namespace) -> None:
    """Rank 1 sleeps here, if this is the place."""
    if options.fault == place and dist.get_rank() == 1:
        time.sleep(options.late_ms / 1000)


def wait_for_a_file_that_never_comes() -> None:
    print("rank 1 waits for a file that never comes", flush=True)
    while True:
        time.sleep(1)


class Numbers(Dataset):
    """Random vectors, each made from its index, so that every rank agrees on sample 7."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def __len__(self) -> int:
        return self.options.batch_size * self.options.steps * dist.get_world_size()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.options.load_ms:
            time.sleep(self.options.load_ms / 1000 / self.options.batch_size)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), index % 10


class LateGradient(torch.autograd.Function):
    """The identity; its backward is where a rank can be late between two buckets."""

    @staticmethod
    def forward(ctx, x, options):
        ctx.options = options
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        late("backward", ctx.options)
        return gradient, None


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.first = nn.Linear(64, options.width)
        self.norm = nn.BatchNorm1d(options.width) if options.batch_norm else nn.Identity()
        self.second = nn.Linear(options.width, options.width)
        self.last = nn.Linear(options.width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        late("forward", self.options)
        x = torch.relu(self.norm(self.first(x)))
        x = LateGradient.apply(torch.relu(self.second(x)), self.options)
        return self.last(x)


class LateSgd(torch.optim.SGD):
    def __init__(self, parameters, options: argparse.Namespace) -> None:
        super().__init__(parameters, lr=0.01)
        self.options = options

    def step(self, closure=None):
        late("optimizer", self.options)
        return super().step(closure)


def batches(loader: DataLoader, options: argparse.Namespace):
    """The loader's batches, for as many epochs as the steps take."""
    epoch = 0
    for step in range(options.steps):
        if step % len(loader) == 0:
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            epoch, iterator = epoch + 1, iter(loader)
        yield next(iterator)


def make_loader(options: argparse.Namespace) -> DataLoader:
    dataset = Numbers(options)
    sampler = None if options.no_sampler else DistributedSampler(dataset)
    if options.fault == "input" and dist.get_rank() == 1:
        options.load_ms += options.late_ms
    return DataLoader(
        dataset,
        options.batch_size,
        sampler=sampler,
        shuffle=options.no_sampler,
        num_workers=options.workers,
    )


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net(options)
    if options.wrap:
        import ddpdoctor

        model = ddpdoctor.wrap(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = LateSgd(model.parameters(), options)
    for step, (x, y) in enumerate(batches(make_loader(options), options)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        late("between", options)
        if options.fault == "hang" and dist.get_rank() == 1 and step == HANGS_AT:
            wait_for_a_file_that_never_comes()
    if options.save:
        torch.save(model.module.state_dict(), f"{options.save}.{dist.get_rank()}")
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--late-ms", type=float, default=40.0)
    parser.add_argument("--load-ms", type=float, default=0.0, help="what a batch takes to load")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--no-sampler", action="store_true", help="forget the DistributedSampler")
    parser.add_argument("--wrap", action="store_true", help="record by ddpdoctor.wrap")
    parser.add_argument("--save", help="where each rank saves its final weights")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
