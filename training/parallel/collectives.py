"""The collectives of tensor slicing, as autograd functions (Shoeybi et al. 2019, figure 3)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class TensorSlice:
    """One rank's part in a tensor-parallel group. `group` is None when nothing is sliced."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce `tensor` over the group, in place; the tensor itself when nothing is sliced."""
        if self.size > 1:
            dist.all_reduce(tensor, op=op, group=self.group)
        return tensor


class _CopyToSlices(torch.autograd.Function):
    """Megatron's f: identity forward, sum of the slices' gradients backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
        ctx.tensor_slice = tensor_slice
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tensor_slice.all_reduce(gradients[0].contiguous().clone()), None


class _SumOverSlices(torch.autograd.Function):
    """Megatron's g: sum of the slices' partial results forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
        return tensor_slice.all_reduce(inputs.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def copy_to_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Enter a sliced region: the same values on every rank, whose gradients are summed on the way back."""
    if tensor_slice.size == 1:
        return inputs
    return _CopyToSlices.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]


def sum_over_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Leave a sliced region: the sum of every rank's partial result, on every rank."""
    if tensor_slice.size == 1:
        return inputs
    return _SumOverSlices.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]


def gather_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Join every rank's last dimension, without gradients: for inference."""
    if tensor_slice.size == 1:
        return inputs
    parts = [torch.empty_like(inputs) for _ in range(tensor_slice.size)]
    dist.all_gather(parts, inputs.contiguous(), group=tensor_slice.group)
    return torch.cat(parts, dim=-1)
