"""Uses of torch.distributed beside DDP's own: groups, objects, peers, waiting for later."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from .registry import STEPS, Outcome, batch, ddp, sgd, train, use

LATE_S = 0.02


@use()
def a_work_that_is_waited_for_later() -> Outcome:
    """Rank 1 comes late to the all-reduce, and rank 0 stands in `wait`."""
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        time.sleep(LATE_S * dist.get_rank())
        metric = batch(step)
        work = dist.all_reduce(metric, async_op=True)
        own = batch(step + 1).square()  # meanwhile
        work.wait()
        outcome.tensors[f"metric.{step}"] = metric + own
    outcome.keep("model", model)
    return outcome


@use()
def functional_collectives() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        time.sleep(LATE_S * dist.get_rank())
        summed = functional.all_reduce(batch(step), "sum", dist.group.WORLD)
        parts = functional.broadcast(batch(step), 1, dist.group.WORLD)
        outcome.tensors[f"summed.{step}"] = summed + 1  # waits
        outcome.tensors[f"parts.{step}"] = functional.wait_tensor(parts)
    outcome.keep("model", model)
    return outcome


@use()
def objects() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        seen: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(seen, {"rank": dist.get_rank(), "step": step})
        told = [f"from rank {dist.get_rank()}", step]
        dist.broadcast_object_list(told, src=0)
        outcome.errors += [str(seen), str(told)]
    outcome.keep("model", model)
    return outcome


@use()
def send_and_receive() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    rank = dist.get_rank()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        there, back = batch(step), torch.empty(8, 64)
        time.sleep(LATE_S * rank)
        if rank == 0:
            dist.send(there, dst=1)
            dist.recv(back, src=1)
        else:
            dist.recv(back, src=0)
            dist.send(there, dst=0)
        later = torch.empty(8, 64)
        works = [dist.isend(back, dst=1 - rank), dist.irecv(later, src=1 - rank)]
        for work in works:
            work.wait()
        outcome.tensors[f"got.{step}"] = back + later
    outcome.keep("model", model)
    return outcome


@use()
def every_other_collective() -> Outcome:
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        own = batch(step)
        parts = [torch.empty_like(own) for _ in range(ranks)]
        dist.all_gather(parts, own)
        whole = torch.empty(8 * ranks, 64)
        dist.all_gather_into_tensor(whole, own)
        dist.broadcast(own, src=1)
        dist.reduce(own, dst=0)
        dist.gather(own, parts if rank == 0 else None, dst=0)
        dist.scatter(own, list(whole.chunk(ranks)) if rank == 0 else None, src=0)
        swapped = torch.empty_like(whole)
        dist.all_to_all_single(swapped, whole)
        piece = torch.empty(8, 64)
        dist.reduce_scatter_tensor(piece, swapped)
        dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        outcome.tensors[f"all.{step}"] = torch.stack([*parts, own, piece])
    outcome.keep("model", model)
    return outcome


@use()
def groups_of_some_ranks() -> Outcome:
    """One group has both ranks, the other one rank each; DDP reduces over its own."""
    both = dist.new_group([0, 1])
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = ddp(process_group=both)
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        own = batch(step)
        dist.all_reduce(own, group=alone[dist.get_rank()])
        dist.all_reduce(own, group=both)
        outcome.tensors[f"own.{step}"] = own
    outcome.keep("model", model)
    return outcome


@use()
def tensor_parallel_beside_ddp() -> Outcome:
    """A mesh of one row for DDP and one column each for the other parallelism."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    model = ddp(device_mesh=mesh["data"])
    optimizer = sgd(model)
    columns = mesh.get_group("tensor")
    for step in range(STEPS):
        optimizer.zero_grad()
        hidden = functional.all_reduce(model(batch(step)).detach(), "sum", columns)
        loss = (model(batch(step)) - hidden).square().mean()
        loss.backward()
        optimizer.step()
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome


@use(failed=1)
def a_collective_that_raises() -> Outcome:
    """The same wrong call on both ranks; training goes on."""
    model = ddp()
    optimizer = sgd(model)
    outcome = Outcome()
    for step in range(STEPS):
        train(model, optimizer, steps=1)
        if step == 1:
            try:
                dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(2))
            except (RuntimeError, ValueError) as error:
                outcome.errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
    outcome.keep("model", model)
    return outcome
