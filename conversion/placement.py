"""Where a slice's rows lie in the whole tensor, and which copies make one slicing out of another.

Pure index arithmetic on one dimension: no tensor, no file, no name. Everything that goes wrong silently in
resharding (the order of a fused projection, the padding of a vocabulary) is here and nowhere else.
"""

import itertools
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from training.model.config import ModelConfig
from training.model.tensors import Slicing, TensorSpec, slicing_dimension


class Order(Enum):
    """How a slice's rows are arranged. The last three are of a fused query-key-value projection."""

    PLAIN = "consecutive rows"
    BLOCKS = "[3, heads, head size]"  # [q; k; v]: ours, Hugging Face's, vLLM's, Megatron's checkpoint version 0
    HEADS = "[heads, 3, head size]"  # Megatron's versions 2 and 3
    INTERLEAVED = "[heads, head size, 3]"  # Megatron's version 1


@dataclass(frozen=True)
class Placement:
    """Slice `rank` of `size` along `dimension`, of which the whole tensor has `whole` rows.

    `padded` is the number of rows with padding, of all slices together; `heads` that of the whole model where the
    order is by heads.
    """

    dimension: int
    whole: int
    padded: int
    rank: int = 0
    size: int = 1
    order: Order = Order.PLAIN
    heads: int = 1

    @property
    def rows(self) -> int:
        """Rows of this slice."""
        return self.padded // self.size

    @property
    def indexes(self) -> NDArray[np.int64]:
        """For each row of the slice its row in the whole tensor; -1 where it is padding."""
        return _indexes(self)


@dataclass(frozen=True)
class Copy:
    """`length` consecutive rows of slice number `source`, from its row `start`, to row `target` of the result."""

    source: int
    start: int
    target: int
    length: int


def place(
    spec: TensorSpec, model: ModelConfig, rank: int, size: int, *, qkv: Order = Order.BLOCKS, vocabulary: int = 0
) -> Placement:
    """Slice `rank` of `size` of a tensor; `vocabulary` is the padded one, by default the model's for that size."""
    dimension = slicing_dimension(spec.slicing)
    whole = spec.shape[dimension]
    if spec.slicing is Slicing.REPLICATED:
        return Placement(dimension, whole, whole)
    if spec.slicing is Slicing.VOCABULARY:
        return Placement(dimension, whole, vocabulary or model.padded_vocab_size(size), rank, size)
    if spec.slicing is Slicing.QKV:
        return Placement(dimension, whole, whole, rank, size, qkv, model.num_attention_heads)
    return Placement(dimension, whole, whole, rank, size)


@lru_cache(maxsize=4096)
def copies_between(target: Placement, sources: tuple[Placement, ...]) -> tuple[Copy, ...]:
    """The copies that make `target` of `sources`; of rows that several hold the first one's are taken.

    Raises ValueError when a row of the whole tensor that `target` needs is in none of the sources.
    """
    owner = np.full(target.whole, -1, dtype=np.int64)
    position = np.zeros(target.whole, dtype=np.int64)
    for number, source in reversed(list(enumerate(sources))):
        real = source.indexes >= 0
        owner[source.indexes[real]] = number
        position[source.indexes[real]] = np.flatnonzero(real)
    wanted = np.flatnonzero(target.indexes >= 0)
    owners, starts = owner[target.indexes[wanted]], position[target.indexes[wanted]]
    if (owners < 0).any():
        missing = int(target.indexes[wanted][owners < 0][0])
        raise ValueError(f"no slice holds row {missing} of {target.whole}")
    if not len(wanted):
        return ()
    breaks = np.flatnonzero((np.diff(owners) != 0) | (np.diff(starts) != 1) | (np.diff(wanted) != 1)) + 1
    edges = [0, *breaks.tolist(), len(wanted)]
    return tuple(
        Copy(int(owners[first]), int(starts[first]), int(wanted[first]), stop - first)
        for first, stop in itertools.pairwise(edges)
    )


@lru_cache(maxsize=4096)
def _indexes(placement: Placement) -> NDArray[np.int64]:
    rows, rank = placement.rows, placement.rank
    if placement.order is Order.PLAIN:
        indexes = np.arange(rank * rows, (rank + 1) * rows)
        indexes[indexes >= placement.whole] = -1
        return indexes
    heads = placement.heads // placement.size
    head_size = placement.whole // (3 * placement.heads)
    whole = np.arange(placement.whole).reshape(3, placement.heads, head_size)
    mine = whole[:, rank * heads : (rank + 1) * heads]
    axes = {Order.BLOCKS: (0, 1, 2), Order.HEADS: (1, 0, 2), Order.INTERLEAVED: (1, 2, 0)}[placement.order]
    return np.ascontiguousarray(mine.transpose(axes)).reshape(-1)
