"""Whole tensors out of any source, one at a time: for comparing checkpoints and for running one."""

from contextlib import ExitStack

import torch

from conversion.cast import Cast
from conversion.placement import place
from conversion.plan import OutputTensor, Plan
from conversion.source import WEIGHT, Source
from conversion.write import make
from training.model.tensors import TensorSpec


def whole_tensor(source: Source, spec: TensorSpec, state: str = WEIGHT) -> torch.Tensor:
    """The tensor `spec`, of its whole shape, as stored; its own memory. Raises UserError when replicas differ."""
    dtype = source.tensors[spec.name, state][0].dtype
    placement = place(spec, source.model, 0, 1, vocabulary=source.model.vocab_size)
    output = OutputTensor(spec.name, spec.shape, dtype, spec, state, placement)
    with ExitStack() as stack:
        return make(Plan(source, ()), output, Cast(dtype), _room, stack).clone()


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)
