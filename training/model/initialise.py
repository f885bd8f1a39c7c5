"""Initial values that depend on the seed and the tensor's name alone, not on the layout.

A sliced tensor is drawn in blocks along its sliced dimension, each from a generator of its own, so
that a rank draws just its slice and every layout holds the same numbers.
"""

import hashlib

import torch

from training.model.config import ModelConfig
from training.model.tensors import Init, Slicing, TensorSpec, slicing_dimension


def initial_slice(spec: TensorSpec, model: ModelConfig, seed: int, rank: int, size: int) -> torch.Tensor:
    """Rank `rank`'s slice, of `size`, of a tensor's initial value, fp32.

    Matrices: N(0, sqrt(1 / (3 h))), the projections that write to the residual stream scaled by
    1 / sqrt(2 L) (Smith et al. 2022, section 3.1; Radford et al. 2019, section 2.3). Rows that pad the
    vocabulary are zero.
    """
    shape = spec.slice_shape(model, size)
    if spec.init is Init.ONES:
        return torch.ones(shape)
    if spec.init is Init.ZEROS:
        return torch.zeros(shape)
    std = model.init_std
    if spec.init is Init.RESIDUAL:
        std /= (2.0 * model.num_layers) ** 0.5
    values = _normal_slice(spec, model, seed, rank, size)
    return values.mul_(std)


def _normal_slice(spec: TensorSpec, model: ModelConfig, seed: int, rank: int, size: int) -> torch.Tensor:
    if spec.slicing is Slicing.REPLICATED:
        return _block(spec.name, seed, 0, spec.shape)
    if spec.slicing is Slicing.VOCABULARY:
        return _vocabulary_slice(spec, model, seed, rank, size)
    dimension = slicing_dimension(spec.slicing)
    heads = model.num_attention_heads
    parts = 3 if spec.slicing is Slicing.QKV else 1
    block_shape = list(spec.shape)
    block_shape[dimension] //= heads * parts
    mine = range(rank * heads // size, (rank + 1) * heads // size)
    numbers = [part * heads + head for part in range(parts) for head in mine]
    return torch.cat([_block(spec.name, seed, number, tuple(block_shape)) for number in numbers], dimension)


def _vocabulary_slice(spec: TensorSpec, model: ModelConfig, seed: int, rank: int, size: int) -> torch.Tensor:
    rows = model.vocab_size_multiple
    per_rank = model.padded_vocab_size(size) // rows // size
    numbers = range(rank * per_rank, (rank + 1) * per_rank)
    values = torch.cat([_block(spec.name, seed, number, (rows, spec.shape[1])) for number in numbers])
    values[max(0, model.vocab_size - numbers.start * rows) :] = 0.0
    return values


def _block(name: str, seed: int, number: int, shape: tuple[int, ...]) -> torch.Tensor:
    digest = hashlib.blake2b(f"{seed}/{name}/{number}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    return torch.randn(shape, generator=generator)
