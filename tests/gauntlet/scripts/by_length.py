"""Trains on texts in batches of similar length, dealt out over the ranks."""

import os
import random
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    Sampler,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Texts(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.lengths = torch.randint(8, 40, (960,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(1, 200, (self.lengths[index],), generator=generator)


class ByLength(Sampler):
    """Batches of similar length; the ranks' batches of one step are neighbours in length."""

    def __init__(self, lengths, size: int, rank: int, world: int) -> None:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [order[k : k + size] for k in range(0, len(order), size)]
        self.groups = [batches[k : k + world] for k in range(0, len(batches) - world + 1, world)]
        self.rank, self.epoch = rank, 0

    def __iter__(self):
        random.Random(self.epoch).shuffle(self.groups)
        self.epoch += 1
        return iter([group[self.rank] for group in self.groups])

    def __len__(self) -> int:
        return len(self.groups)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Texts()
    sampler = ByLength(dataset.lengths, 16, rank, world)
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad)
    head = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 200))
    network = nn.Sequential(nn.Embedding(200, 128), head)
    model = DDP(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for tokens in loader:
            scores, target = model(tokens[:, :-1]), tokens[:, 1:]
            loss = F.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
