"""Whole tensors out of any source, one at a time: for comparing checkpoints and for running one."""

import torch

from conversion.cast import Cast
from conversion.placement import place
from conversion.plan import OutputTensor, Plan
from conversion.source import WEIGHT, Source
from conversion.write import Room, make
from training.model.tensors import TensorSpec


def whole_tensor(source: Source, spec: TensorSpec, state: str = WEIGHT) -> torch.Tensor:
    """The tensor `spec`, of its whole shape, as stored; its own memory. Raises UserError when replicas differ."""
    dtype = source.tensors[spec.name, state][0].dtype
    placement = place(spec, source.model, 0, 1, vocabulary=source.model.vocab_size)
    output = OutputTensor(spec.name, spec.shape, dtype, spec, state, placement)
    return make(Plan(source, ()), output, Cast(dtype), Room())
