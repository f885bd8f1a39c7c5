"""Cutting a whole tensor into tensor-parallel slices and joining them again, as the table says."""

from collections.abc import Sequence

import torch

from training.model.config import ModelConfig
from training.model.tensors import Slicing, TensorSpec, slicing_dimension


def take_slice(spec: TensorSpec, whole: torch.Tensor, model: ModelConfig, rank: int, size: int) -> torch.Tensor:
    """Rank `rank`'s slice, of `size`, of a whole tensor of shape `spec.shape`; contiguous, its own storage."""
    if spec.slicing is Slicing.REPLICATED:
        return whole.clone()
    if spec.slicing is Slicing.QKV:
        return torch.cat([part.chunk(size)[rank] for part in whole.chunk(3)])
    if spec.slicing is Slicing.VOCABULARY:
        return _vocabulary_slice(whole, model.padded_vocab_size(size) // size, rank)
    return whole.chunk(size, slicing_dimension(spec.slicing))[rank].clone(memory_format=torch.contiguous_format)


def join_slices(spec: TensorSpec, slices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole tensor, of shape `spec.shape`, from every rank's slice in order of rank.

    Replicated tensors must be equal on all ranks: a difference means that training went wrong, and
    averaging would hide it, so it is a ValueError.
    """
    if spec.slicing is Slicing.REPLICATED:
        for rank, other in enumerate(slices):
            if not torch.equal(other, slices[0]):
                raise ValueError(f"replicated tensor {spec.name} differs between tensor-parallel ranks 0 and {rank}")
        return slices[0].clone()
    if spec.slicing is Slicing.QKV:
        parts = [piece.chunk(3) for piece in slices]
        return torch.cat([part[which] for which in range(3) for part in parts])
    whole = torch.cat(list(slices), slicing_dimension(spec.slicing))
    return whole[: spec.shape[0]] if spec.slicing is Slicing.VOCABULARY else whole


def _vocabulary_slice(whole: torch.Tensor, rows: int, rank: int) -> torch.Tensor:
    piece = whole.new_zeros((rows, *whole.shape[1:]))
    held = whole[rank * rows : (rank + 1) * rows]
    piece[: held.shape[0]] = held
    return piece
