"""Canaries: each private torch name we lean on still does what we take it for."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data import DataLoader

from ddpdoctor.hang.inband import pending_of
from ddpdoctor.recorder import _torch_private as private


@pytest.fixture
def group(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_collective_ops_lists_what_ddp_and_users_call() -> None:
    names = {op.name for op in private.collective_ops()}

    assert {"allreduce_", "broadcast_", "allgather_", "barrier", "send", "recv_"} <= names
    assert all("process_group" in op.argument_names for op in private.collective_ops())


def test_collectives_of_all_groups_are_counted_together(group) -> None:
    other = dist.new_group([0])
    before = private.collectives_so_far()

    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), group=other)

    assert private.collectives_so_far() == before + 2


def test_a_kernel_sees_python_and_c_plus_plus_callers_and_can_be_removed(group) -> None:
    seen: list[str] = []

    def make(op: private.CollectiveOp, redispatch: private.Kernel, behind) -> private.Kernel:
        def kernel(keyset, *arguments):
            seen.append(op.name)
            index = op.argument_names.index("process_group")
            assert private.group_key(private.unbox_group(arguments[index])) == "0"
            return redispatch(keyset & behind, *arguments)

        return kernel

    registration = private.KernelRegistration(make)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    model = DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    registration.remove()
    dist.all_reduce(tensor)

    assert seen.count("allreduce_") == 2  # ours and the reducer's bucket
    assert "broadcast_" in seen  # DDP's constructor
    assert tensor.tolist() == [1, 1, 1]


def test_completion_is_called_back(group) -> None:
    done: list[object] = []

    def make(op: private.CollectiveOp, redispatch: private.Kernel, behind) -> private.Kernel:
        def kernel(keyset, *arguments):
            result = redispatch(keyset & behind, *arguments)
            assert private.when_complete(result, done.append) is private.Completion.CALLBACK
            return result

        return kernel

    registration = private.KernelRegistration(make)
    for _ in range(5):
        dist.all_reduce(torch.ones(3))
    registration.remove()

    assert len(done) >= 4  # the last may still be on its way


def test_what_waits_for_a_work_can_be_watched_and_is_restored(group) -> None:
    import torch.distributed._functional_collectives as functional

    waits: list[str] = []

    def make(original: private.Kernel) -> private.Kernel:
        def wait(*arguments, **named):
            waits.append("begins")
            return original(*arguments, **named)

        return wait

    plain = vars(dist.Work)["wait"]
    registration = private.WaitRegistration(make)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, async_op=True).wait()
    assert len(waits) == 1
    summed = functional.all_reduce(tensor, "sum", group) + 1
    assert len(waits) == 2
    assert summed.tolist() == [2, 2, 2]
    registration.remove()
    dist.all_reduce(tensor, async_op=True).wait()
    functional.wait_tensor(functional.all_reduce(tensor, "sum", group))

    assert len(waits) == 2
    assert vars(dist.Work)["wait"] is plain


def test_destroying_a_group_is_told_before(group) -> None:
    ending: list[dist.ProcessGroup] = []
    plain = vars(dist.ProcessGroup)["shutdown"]
    hook = private.ShutdownHook(ending.append)
    dist.destroy_process_group(dist.new_group([0]))
    assert [private.group_key(each) for each in ending] != [private.group_key(group)]
    assert len(ending) == 1
    hook.remove()
    dist.destroy_process_group(dist.new_group([0]))

    assert len(ending) == 1
    assert vars(dist.ProcessGroup)["shutdown"] is plain


def test_sequence_numbers_count_collectives(group) -> None:
    before = private.sequence_number(group)
    dist.all_reduce(torch.ones(1))

    assert private.sequence_number(group) == before + 1


def test_the_default_group_and_store_are_those_of_the_job(group) -> None:
    assert private.default_group() is group
    private.default_store().set("ddpdoctor/canary", "sings")
    assert private.default_store().get("ddpdoctor/canary") == b"sings"


def test_callbacks_run_around_the_wait_for_the_buckets(group) -> None:
    """The first before DDP's own callback, one queued from within it after."""
    order: list[str] = []
    model = DistributedDataParallel(nn.Linear(2, 2))
    output = model(torch.ones(1, 2))

    def compute_ends() -> None:
        order.append("compute ends")
        private.after_backward(lambda: order.append("backward ends"))

    def begins(_gradient: torch.Tensor) -> None:
        order.append("backward begins")
        private.after_backward(compute_ends)

    output.register_hook(begins)
    output.sum().backward()

    assert order == ["backward begins", "compute ends", "backward ends"]


def test_the_compiler_stays_out_of_a_marked_function_and_of_what_it_calls() -> None:
    """As a hook sees it that runs while a compiled graph does, here by a tensor's hook."""
    compiled: list[str] = []

    def backend(graph, _inputs):
        compiled.append(graph.code)
        return graph.forward

    def inner(value):
        return value * 2

    @private.without_dynamo
    def marked(value):
        return inner(value) + 1

    @torch.compile(backend=backend)
    def train(value):
        return marked(value) - 3

    assert train(torch.ones(2)).tolist() == [0, 0]
    assert compiled  # what is left of the function: the subtraction
    assert not any("mul" in code or "* 2" in code for code in compiled)


def test_the_reducers_calls_come_from_the_engine(group) -> None:
    import sys

    callers: list[CodeType] = []

    def make(op: private.CollectiveOp, redispatch: private.Kernel, behind) -> private.Kernel:
        def kernel(keyset, *arguments):
            frame = sys._getframe(1)
            if op.name == "allreduce_" and frame is not None:
                callers.append(frame.f_code)
            return redispatch(keyset & behind, *arguments)

        return kernel

    model = DistributedDataParallel(nn.Linear(2, 2))
    registration = private.KernelRegistration(make)
    model(torch.ones(1, 2)).sum().backward()
    dist.all_reduce(torch.ones(1))
    registration.remove()

    assert [code.co_name == private.ENGINE_FUNCTION for code in callers] == [True, False]
    assert [code.co_filename == private.WAITING_FILE for code in callers] == [False, True]


def test_bucket_sizes_in_bytes(group) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    for _ in range(3):
        model(torch.ones(1, 8)).sum().backward()

    assert private.bucket_bytes(model) == ((64 + 8) * 4,)


def test_bytes_of_a_sparse_tensor() -> None:
    indices, values = torch.zeros(1, 3, dtype=torch.int64), torch.ones(3, dtype=torch.float32)
    tensor = torch.sparse_coo_tensor(indices, values, (8,), check_invariants=True)

    assert private.sparse_bytes(tensor) == 3 * 8 + 3 * 4  # the three are at one place


def test_loader_classes_cover_both_kinds_of_iterator() -> None:
    classes = private.loader_classes()

    for workers in (0, 1):
        iterator = iter(DataLoader([1, 2, 3], num_workers=workers))
        assert any(kind in classes for kind in type(iterator).__mro__)
        assert hasattr(private.LOADER_ITERATOR, private.NEXT_INDEX)
        assert private.delivers_in_order(iterator)
        del iterator


def test_ddp_has_the_methods_that_are_patched() -> None:
    assert callable(getattr(DistributedDataParallel, private.PRE_FORWARD))
    assert callable(getattr(DistributedDataParallel, private.POST_FORWARD))


def test_torchs_own_server_answers_and_says_nothing_on_standard_error(
    group, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the flight recorder: as many collectives as the group has seen, none of them pending."""
    path = tmp_path / "rank.sock"
    dist.all_reduce(torch.ones(3))

    private.start_worker_server(str(path))
    answer = pending_of(str(path))

    assert answer == ()
    assert capfd.readouterr().err == ""


def test_private_names_live_in_one_module_alone() -> None:
    """`ddp.reducer` and friends have no underscore for ruff to find."""
    package = Path(private.__file__).parents[1]
    pattern = re.compile(r"\.reducer\b|\._C\b|import _C\b|distributed_c10d|_execution_engine")

    found = [
        path.name
        for path in package.rglob("*.py")
        if path.name != "_torch_private.py" and pattern.search(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_which_parameters_took_part_and_when_their_gradients_were_ready(group) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x)

    plain = DistributedDataParallel(Branch())
    searching = DistributedDataParallel(Branch(), find_unused_parameters=True)
    for model in (plain, searching):
        model(torch.ones(1, 2)).sum().backward()

    first = private.ready_times(plain)
    assert [time > 0 for time in first] == [True, True, False, False]
    assert private.used_parameters(plain) is None
    assert private.used_parameters(searching) == [True, True, False, False]

    whole = DistributedDataParallel(nn.Linear(2, 2))
    whole(torch.ones(1, 2)).sum().backward()
    times = private.ready_times(whole)
    whole.module(torch.ones(1, 2)).sum().backward()  # past DDP
    assert private.ready_times(whole) == times
    whole(torch.ones(1, 2)).sum().backward()
    assert all(a != b for a, b in zip(private.ready_times(whole), times, strict=True))


def test_communication_hooks_are_named(group) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    assert private.communication_hooks(model) == ()

    model.register_comm_hook(None, fp16_compress_hook)

    assert private.communication_hooks(model) == ("fp16_compress_hook",)


def test_the_seed_of_a_loader_s_workers_is_known_and_drawn_from_its_generator() -> None:
    def seed_of(number: int) -> int | None:
        generator = torch.Generator().manual_seed(number)
        return private.base_seed(iter(DataLoader(torch.arange(4), generator=generator)))

    assert seed_of(1) == seed_of(1)
    assert seed_of(1) != seed_of(2)
    assert isinstance(seed_of(1), int)


@pytest.mark.parametrize("enable", [True, False])
def test_a_join_context_says_whether_it_evens_out(group, enable: bool) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))

    assert private.evens_out(model.join(enable=enable)) is enable


def test_a_model_tells_whether_it_runs_within_join(group) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))

    with model.join(enable=False):
        assert not private.joins(model)
    with model.join():
        assert private.joins(model)


def test_a_collective_that_failed_is_told_from_one_that_completed() -> None:
    done, failed = torch.futures.Future(), torch.futures.Future()
    done.set_result([])
    failed.set_exception(RuntimeError("Timed out"))

    assert private.succeeded(done)
    assert not private.succeeded(failed)


def test_numbers_in_a_graph_are_read_as_they_lie_there() -> None:
    x = torch.randn(8, 4, requires_grad=True)
    product, quotient = x.mean() * 3, x.mean() / torch.tensor(4.0)
    mean = product.grad_fn.next_functions[0][0]
    entropy = cross_entropy(x, torch.tensor([-100, -100, 1, 1, 1, 1, 1, 1])).grad_fn

    assert private.saved_number(product.grad_fn, "other") == 3
    assert private.saved_number(quotient.grad_fn, "other") == 4
    assert private.saved_number((x * x.detach()).grad_fn, "other") is None
    assert private.averaged_over(mean) == 32
    assert private.averaged_over(entropy) == 6
    assert private.averaged_over(x.exp().grad_fn) is None


def test_what_hooks_for_saved_tensors_packed_is_left_alone() -> None:
    def unpacked(_packed):
        raise AssertionError

    x = torch.randn(8, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: "packed", unpacked):
        product = x.mean() * x.detach().mean()
        error = mse_loss(x, x.detach())

    assert private.saved_number(product.grad_fn, "other") is None
    assert private.averaged_over(error.grad_fn) is None


def test_the_operation_of_an_all_reduce_is_known_in_its_frame(group) -> None:
    seen: list[bool] = []

    def make(op: private.CollectiveOp, redispatch: private.Kernel, behind) -> private.Kernel:
        def kernel(keyset, *arguments):
            frame = sys._getframe(1)
            while frame is not None and not frame.f_code.co_filename.endswith("c10d.py"):
                frame = frame.f_back
            seen.append(private.is_sum(frame))
            return redispatch(keyset & behind, *arguments)

        return kernel

    registration = private.KernelRegistration(make)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(1), 0)
    registration.remove()

    assert seen == [True, False, False]
    assert not private.is_sum(None)


def test_backward_and_eval_are_looked_up_where_they_are_patched() -> None:
    names = {"backward", "autograd"}
    assert names <= set(torch.Tensor.backward.__code__.co_names)
    assert "backward" in CheckpointFunction.backward.__code__.co_names
    assert "train" in nn.Module.eval.__code__.co_names
