"""Where the facts of a collective lie among the arguments of its operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from ddpdoctor.events import Flag, Op
from ddpdoctor.recorder import _torch_private as private

_OPS: Final = (  # the first prefix that fits
    ("allreduce", Op.ALL_REDUCE),
    ("broadcast", Op.BROADCAST),
    ("allgather", Op.ALL_GATHER),
    ("_allgather", Op.ALL_GATHER),
    ("reduce_scatter", Op.REDUCE_SCATTER),
    ("_reduce_scatter", Op.REDUCE_SCATTER),
    ("reduce_", Op.REDUCE),
    ("gather", Op.GATHER),
    ("scatter", Op.SCATTER),
    ("alltoall", Op.ALL_TO_ALL),
    ("barrier", Op.BARRIER),
    ("monitored_barrier", Op.BARRIER),
    ("send", Op.SEND),
    ("recv", Op.RECV),
)
_PEER_ARGUMENTS: Final = ("root_rank", "dst", "src")
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)


@dataclass(frozen=True, slots=True)
class Signature:
    """Where the facts lie among the arguments of one operation."""

    op: Op
    group: int
    tensors: int
    is_async: int | None
    peer: int | None
    flags: int  # those of every call
    blocks: bool  # every call

    @classmethod
    def of(cls, operation: private.CollectiveOp) -> Signature:
        names = operation.argument_names
        op = next((op for prefix, op in _OPS if operation.name.startswith(prefix)), Op.OTHER)
        peers = [names.index(name) for name in _PEER_ARGUMENTS if name in names]
        inputs = [index for index, name in enumerate(names) if name.startswith("input")]
        return cls(
            op,
            names.index("process_group"),
            # the larger side, as nccl-tests count: of an all-gather the output, which comes first
            inputs[0] if op is Op.REDUCE_SCATTER and inputs else 0,
            names.index("async_op") if "async_op" in names else None,
            peers[0] if peers else None,
            _POINT_TO_POINT if op in (Op.SEND, Op.RECV) else 0,
            operation.name.startswith("monitored_barrier"),
        )

    def is_synchronous(self, arguments: tuple[Any, ...]) -> bool:
        """Whether the call says that it is to be complete when it comes back to the script."""
        index = self.is_async
        return index is not None and index < len(arguments) and arguments[index] is False


def extent(argument: Any) -> tuple[int, bool]:
    """Bytes of the tensors in an argument, and whether none of them is on a GPU."""
    if type(argument) is list and len(argument) == 1 and type(argument[0]) is torch.Tensor:
        (tensor,) = argument  # of a reducer's bucket
        if tensor.layout is torch.strided:
            return tensor.nbytes, not tensor.is_cuda
    tensors = _tensors(argument)
    return sum(map(_bytes_of, tensors)), not any(tensor.is_cuda for tensor in tensors)


def _bytes_of(tensor: torch.Tensor) -> int:
    """Of a sparse one, only what it stores."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return private.sparse_bytes(tensor)
    return tensor.numel() * tensor.element_size()


def _tensors(argument: Any) -> list[torch.Tensor]:
    """The tensors in an argument: one tensor, a list of them or a list of lists."""
    if isinstance(argument, torch.Tensor):
        return [argument]
    found: list[torch.Tensor] = []
    for item in argument:
        found += _tensors(item)
    return found
