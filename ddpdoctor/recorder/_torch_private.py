"""Every private torch name that ddpdoctor leans on, and nowhere else.

Run with torch 2.13.0 (CPU build). Each function has a canary test on the installed torch. Where
a name is gone the function raises AttributeError, which switches recording off with one warning:
training goes on as without us.
"""

from __future__ import annotations

import ctypes
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import _C
from torch._C import _distributed_c10d as _c10d
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)
from torch.distributed import distributed_c10d
from torch.utils.data import dataloader

Kernel = Callable[..., Any]
Given = ParamSpec("Given")
Returned = TypeVar("Returned")
# Where the functions of torch.distributed are that wait themselves for what they issue.
WAITING_FILE = distributed_c10d.__file__
ENGINE_FUNCTION = "_engine_run_backward"  # from which DDP's reducer is called
_SHUTDOWN = "shutdown"
_WAIT = "wait"


@dataclass(frozen=True)
class CollectiveOp:
    """One operation of the dispatcher's `c10d` namespace that works on a process group."""

    name: str
    argument_names: tuple[str, ...]
    overload: Any


def collective_ops() -> list[CollectiveOp]:
    """All `c10d::*` operations that take a process group."""
    found = []
    for full_name in _C._dispatch_get_all_op_names():
        if not full_name.startswith("c10d::"):
            continue
        name = full_name.removeprefix("c10d::")
        overload = getattr(torch.ops.c10d, name).default
        arguments = tuple(argument.name for argument in overload._schema.arguments)
        if "process_group" in arguments:
            found.append(CollectiveOp(name, arguments, overload))
    return found


class KernelRegistration:
    """Python kernels on the dispatch key BackendSelect, in front of the backend's own.

    The key comes before the backend for Python and C++ callers alike, so DDP's reducer is seen
    without taking its communication hook. `make_kernel` is given the operation, the function that
    calls what comes behind, and the keys that are behind: the kernel calls that
    function once, with its own keys as far as they are among these. `remove` uninstalls.
    """

    def __init__(self, make_kernel: Callable[[CollectiveOp, Kernel, Any], Kernel]) -> None:
        after = _C._dispatch_keyset_full_after(_C.DispatchKey.BackendSelect)
        self._library = torch.library.Library(  # type: ignore[no-untyped-call]
            "c10d", "IMPL"
        )
        for op in collective_ops():
            kernel = make_kernel(op, op.overload._handle.redispatch_boxed, after)
            self._library.impl(  # type: ignore[no-untyped-call]
                op.name, kernel, "BackendSelect", with_keyset=True
            )

    def remove(self) -> None:
        self._library._destroy()  # type: ignore[no-untyped-call]


class WaitRegistration:
    """Stands around all that waits for a Work: `Work.wait`, and `wait_tensor` of the functional
    collectives. `remove` restores both.

    Backends whose Work defines `wait` itself in Python, and waiting for a Work's future, go past.
    """

    def __init__(self, make_wait: Callable[[Kernel], Kernel]) -> None:
        self._wait = vars(_c10d.Work)[_WAIT]
        after = _C._dispatch_keyset_full_after(_C.DispatchKey.BackendSelect)
        functional = torch.ops._c10d_functional.wait_tensor.default
        wait = make_wait(functional.redispatch)

        @without_dynamo
        def kernel(keyset: Any, *arguments: Any) -> Any:
            return wait(keyset & after, *arguments)

        self._library = torch.library.Library(  # type: ignore[no-untyped-call]
            "_c10d_functional", "IMPL"
        )
        self._library.impl(  # type: ignore[no-untyped-call]
            "wait_tensor", kernel, "BackendSelect", with_keyset=True
        )
        setattr(_c10d.Work, _WAIT, without_dynamo(make_wait(self._wait)))

    def remove(self) -> None:
        setattr(_c10d.Work, _WAIT, self._wait)
        self._library._destroy()  # type: ignore[no-untyped-call]


class ShutdownHook:
    """Calls `before(group)` when a process group is about to be destroyed, until `remove`."""

    def __init__(self, before: Callable[[dist.ProcessGroup], object]) -> None:
        self._shutdown = shutdown = vars(_c10d.ProcessGroup)[_SHUTDOWN]

        def recorded_shutdown(group: dist.ProcessGroup) -> Any:
            before(group)
            return shutdown(group)

        setattr(_c10d.ProcessGroup, _SHUTDOWN, recorded_shutdown)

    def remove(self) -> None:
        setattr(_c10d.ProcessGroup, _SHUTDOWN, self._shutdown)


# The process group in an argument of a c10d operation. Torch's function itself: it is called for
# every collective.
unbox_group: Callable[[Any], dist.ProcessGroup] = _c10d.ProcessGroup.unbox


class Completion(Enum):
    """What is known of the end of a collective once its call came back."""

    CALLBACK = auto()  # the callback will tell
    DONE = auto()  # the call itself blocked until the end
    UNKNOWN = auto()  # the backend's Work has no future (gloo's send and recv)


def when_complete(result: Any, callback: Callable[[Any], None]) -> Completion:
    """Have a thread of the backend call back when the collective completes."""
    boxed = result[-1] if isinstance(result, tuple) else result
    if boxed is None:
        return Completion.DONE
    try:
        future = _c10d.Work.unbox(boxed).get_future()
    except RuntimeError:  # "Work::getFuture not implemented"
        return Completion.UNKNOWN
    future.add_done_callback(callback)
    return Completion.CALLBACK


def succeeded(future: Any) -> bool:
    """Of a future that is done: whether the collective completed, and did not fail."""
    try:
        future.value()
    except RuntimeError:
        return False
    return True


def group_key(group: dist.ProcessGroup) -> str:
    """The name under which torch keeps the group: equal on all of its ranks."""
    return str(group.group_name)


def sequence_number(group: dist.ProcessGroup) -> int:
    """How many collectives the group has seen; the flight recorder counts the same."""
    counted: Any = group
    return int(counted._get_sequence_number_for_group())


def collectives_so_far() -> int:
    """Of all process groups that this rank is in, counted together; sends and receives are not."""
    return sum(sequence_number(group) for group in distributed_c10d._world.pg_map)


def sparse_bytes(tensor: torch.Tensor) -> int:
    """What a tensor of indices and values stores; it need not be coalesced."""
    return int(tensor._indices().nbytes + tensor._values().nbytes)


# Call back at the end of the running backward; from within a callback: after the others.
after_backward: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)


def bucket_bytes(model: Any) -> tuple[int, ...]:
    """Sizes of the model's gradient buckets in launch order; those rebuilt after the first step."""
    data = model._get_ddp_logging_data()
    sizes = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return tuple(int(size) for size in str(sizes).split(",") if size.strip())


def communication_hooks(model: Any) -> tuple[str, ...]:
    """Names of the communication hooks that were registered with the model."""
    return tuple(
        str(getattr(hook, "__qualname__", type(hook).__name__)) for hook, _ in model._comm_hooks
    )


def used_parameters(model: Any) -> list[bool] | None:
    """Which of the reduced parameters took part in the last backward on this rank.

    None where DDP does not look for it (`find_unused_parameters=False`).
    """
    used = model.reducer._get_local_used_map()
    return None if used is None or not used.is_cpu else [bool(count) for count in used.tolist()]


def ready_times(model: Any) -> list[int]:
    """When each reduced parameter's gradient was ready: stays as it was where that was not so."""
    return list(model.reducer.get_backward_stats())


def default_group() -> dist.ProcessGroup:
    return distributed_c10d._get_default_group()


def default_store() -> _c10d.Store:
    return distributed_c10d._get_default_store()


def store_of_its_own() -> Any:
    """A client of the job's store for another thread: one blocking call holds a client."""
    store: Any = default_store()
    return store.clone()


def loader_classes() -> list[type]:
    """DataLoader's iterators that define `__next__` themselves, subclasses included."""
    found: list[type] = []
    waiting: list[type] = [dataloader._BaseDataLoaderIter]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        if "__next__" in vars(kind):
            found.append(kind)
    return found


LOADER_ITERATOR: type = dataloader._BaseDataLoaderIter
NEXT_INDEX = "_next_index"


def delivers_in_order(iterator: Any) -> bool:
    """Whether batches come in the order in which their indices were drawn (the default)."""
    return bool(getattr(iterator, "_in_order", True))


def base_seed(iterator: Any) -> int | None:
    """From which an iterator's workers take their random numbers; drawn before we look."""
    seed = getattr(iterator, "_base_seed", None)
    return seed if type(seed) is int else None


def evens_out(join: Any) -> bool:
    """Whether a `Join` context lets ranks have fewer batches; with `enable=False` it does not."""
    return bool(getattr(join, "_enable", True))


def joins(model: Any) -> bool:
    """Whether the model is, or was last, in a `Join` that lets ranks have fewer batches."""
    return bool(model._join_config.enable)


def saved_number(node: Any, side: str) -> float | None:
    """The number that a product or quotient in autograd's graph kept, where it is one.

    None for a tensor of several, on a GPU, or one that hooks for saved tensors would have to bring
    back. Before the backward only: it frees them.
    """
    plain = getattr(node, f"_saved_{side}", None) if _is_scalar_node(node) else None
    if isinstance(plain, (int, float)):
        return float(plain)
    saved = _plain_saved(node, side)
    if saved is None or not saved.is_cpu or saved.numel() != 1 or saved.is_complex():
        return None
    return float(saved.detach())


def averaged_over(node: Any) -> float | None:
    """Of how many values a loss is the mean: what its node divides by.

    Cross-entropy divides by the targets that are not ignored, each with its class's weight.
    """
    count = getattr(node, "_saved_self_sym_numel", None)
    if isinstance(count, int):
        return float(count)
    if hasattr(node, "_raw_saved_total_weight"):
        return saved_number(node, "total_weight")
    saved = _plain_saved(node, "self")
    return float(saved.numel()) if saved is not None else None


def _is_scalar_node(node: Any) -> bool:
    """Whether it keeps a Python number: such nodes are those of operations on a scalar."""
    return str(node.name()).endswith("1")


def _plain_saved(node: Any, side: str) -> torch.Tensor | None:
    """A saved tensor as it lies there; None where a hook packed it."""
    saved = getattr(node, f"_raw_saved_{side}", None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None
    data = saved.data
    return data if isinstance(data, torch.Tensor) else None


def is_sum(frame: Any) -> bool:
    """Whether the frame is `torch.distributed.all_reduce` and its operation a sum."""
    if frame is None or frame.f_code is not _ALL_REDUCE:
        return False
    return bool(frame.f_locals.get("op") == dist.ReduceOp.SUM)


_ALL_REDUCE = inspect.unwrap(distributed_c10d.all_reduce).__code__


PRE_FORWARD = "_pre_forward"
POST_FORWARD = "_post_forward"


def without_dynamo(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Keep the compiler out of one of our hooks and of what it calls.

    It is a mark on the function's code: `torch.compiler.disable` does the same by two more Python
    frames around every call.
    """
    skip = _FrameAction.SKIP
    marked: Any = function
    set_code_exec_strategy(marked.__code__, _FrameExecStrategy(skip, skip))
    marked._torchdynamo_disable = True
    return function


def start_worker_server(socket_path: str) -> None:
    """Have a thread of torch's in C++ answer on a unix socket, also where the GIL is held.

    It answers until the process ends. Never shut down and never collected, on purpose: its end
    waits for its thread, while the GIL is held; and a forked child that ended it would close
    the socket under the parent, which aborts that. Raises AttributeError or ValueError where
    its name, or the level by which its lines on standard error are kept back, is gone.
    """
    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    before = level.value
    level.value = max(before, _ONLY_ERRORS)
    try:
        server = _c10d._WorkerServer(socket_path, -1)
    finally:
        level.value = before
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


_ONLY_ERRORS = 2  # of c10's levels
