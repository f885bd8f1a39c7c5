"""The collectives of tensor slicing, as autograd functions.

Without sequence parallelism they are Megatron's f and g (Shoeybi et al. 2019, figure 3), with it g and
g-bar (Korthikanti et al. 2022, section 4.2.2): outside sliced regions a rank then holds 1 / t of the
sequence, and an all-reduce is split into a reduce-scatter and an all-gather, which move as many bytes.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F


@dataclass(frozen=True)
class TensorSlice:
    """One rank's part in a tensor-parallel group. `group` is None when nothing is sliced.

    `sequence_parallel`: activations outside sliced regions are [sequence / size, batch, hidden].
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False

    def positions(self, rows: int) -> range:
        """The positions in the sequence that `rows` rows held outside sliced regions have."""
        first = self.rank * rows if self.sequence_parallel else 0
        return range(first, first + rows)

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        """Reduce `tensor` over the group, in place; the tensor itself when nothing is sliced."""
        if self.size > 1:
            dist.all_reduce(tensor, op=op, group=self.group)
        return tensor

    def gather_sequence(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's rows, in order: [n, ...] becomes [n size, ...]."""
        rows, *rest = tensor.shape
        whole = tensor.new_empty((rows * self.size, *rest))
        dist.all_gather_single(whole, tensor.contiguous(), group=self.group)
        return whole

    def scatter_sequence(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum over the group: [n size, ...] becomes [n, ...]."""
        rows, *rest = tensor.shape
        mine = tensor.new_empty((rows // self.size, *rest))
        dist.reduce_scatter_single(mine, tensor.contiguous(), group=self.group)
        return mine


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


class _GatherSequence(torch.autograd.Function):
    """Korthikanti's g: all-gather forward, reduce-scatter backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
        ctx.tensor_slice = tensor_slice
        return tensor_slice.gather_sequence(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tensor_slice.scatter_sequence(gradients[0]), None


class _ScatterSequence(torch.autograd.Function):
    """Korthikanti's g-bar: reduce-scatter forward, all-gather backward."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
        ctx.tensor_slice = tensor_slice
        return tensor_slice.scatter_sequence(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.tensor_slice.gather_sequence(gradients[0]), None


class _GatheredLinear(torch.autograd.Function):
    """A linear map of the gathered sequence that keeps only this rank's rows for its backward pass.

    Backward gathers them again, which is what lets sequence parallelism divide the memory of activations by t
    (Korthikanti et al. 2022, section 4.2.2).
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tensor_slice: TensorSlice
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.tensor_slice = tensor_slice
        return F.linear(tensor_slice.gather_sequence(inputs), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, None]:
        inputs, weight = ctx.saved_tensors
        outward = gradients[0]
        to_inputs = ctx.tensor_slice.scatter_sequence(outward @ weight)
        rows = outward.flatten(0, -2)
        to_weight = rows.t() @ ctx.tensor_slice.gather_sequence(inputs).flatten(0, -2)
        return to_inputs, to_weight, rows.sum(0) if ctx.needs_input_grad[2] else None, None


def column_linear(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tensor_slice: TensorSlice
) -> torch.Tensor:
    """Enter a sliced region through a column-parallel linear map, [out / size, in]: [s, b, in] to [s, b, out / size].

    With sequence parallelism `inputs` are this rank's rows, [s / size, b, in].
    """
    if tensor_slice.sequence_parallel:
        return _GatheredLinear.apply(inputs, weight, bias, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]
    return F.linear(copy_to_slices(inputs, tensor_slice), weight, bias)


def copy_to_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Enter a sliced region: the same values on every rank, whose gradients are summed on the way back.

    With sequence parallelism `inputs` are this rank's rows and the result is all of them.
    """
    if tensor_slice.size == 1:
        return inputs
    if tensor_slice.sequence_parallel:
        return _GatherSequence.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]
    return _CopyToSlices.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]


def sum_over_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Leave a sliced region: the sum of every rank's partial result, on every rank.

    With sequence parallelism a rank gets its own rows of that sum.
    """
    if tensor_slice.size == 1:
        return inputs
    if tensor_slice.sequence_parallel:
        return _ScatterSequence.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]
    return _SumOverSlices.apply(inputs, tensor_slice)  # type: ignore[no-any-return, no-untyped-call]


def gather_slices(inputs: torch.Tensor, tensor_slice: TensorSlice) -> torch.Tensor:
    """Join every rank's last dimension, without gradients: for inference."""
    if tensor_slice.size == 1:
        return inputs
    parts = [torch.empty_like(inputs) for _ in range(tensor_slice.size)]
    dist.all_gather(parts, inputs.contiguous(), group=tensor_slice.group)
    return torch.cat(parts, dim=-1)
