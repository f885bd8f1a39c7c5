"""The plan of a conversion: output files, the tensors in each, and for each the copies that it is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from conversion.placement import Copy, Placement, copies_between
from conversion.source import WEIGHT, Source
from conversion.stored import StoredSlice
from training.model.tensors import TensorSpec


@dataclass(frozen=True)
class OutputTensor:
    """One tensor of an output file, stored under `key` with `shape`.

    It is the slice `placement` of the tensor `spec`, [in, out] where `transposed`; only its flattened elements
    `part` where ZeRO partitions it; or, without a `spec`, `fill` everywhere.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    spec: TensorSpec | None = None
    state: str = WEIGHT
    placement: Placement | None = None
    transposed: bool = False
    part: tuple[int, int] | None = None
    fill: float = 0.0

    @property
    def size(self) -> int:
        """Bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of the whole slice in the table's orientation."""
        if self.spec is None or self.placement is None:
            return self.shape
        shape = list(self.spec.shape)
        shape[self.placement.dimension] = self.placement.rows
        return tuple(shape)


@dataclass(frozen=True)
class OutputFile:
    """A file of the output; the order of its tensors is the order in which they are written.

    It is a safetensors file with `metadata`; or, with a `tree`, what `torch.load` reads as that tree, whose leaves the
    tensors are.
    """

    name: str
    tensors: tuple[OutputTensor, ...]
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    tree: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True)
class Plan:
    """Everything that a conversion will read and write."""

    source: Source
    files: tuple[OutputFile, ...]

    @property
    def bytes_written(self) -> int:
        """Bytes of all outputs' tensors."""
        return sum(file.size for file in self.files)

    @property
    def bytes_read(self) -> int:
        """Bytes of the slices' rows that are copied; a row that goes to several outputs counts each time."""
        return sum(self._read(tensor) for file in self.files for tensor in file.tensors)

    @property
    def peak_bytes(self) -> int:
        """The most that is in memory: two outputs (one is written while the next is made) and what one is made of."""
        tensors = [tensor for file in self.files for tensor in file.tensors]
        return max((2 * _slice_size(tensor) + self._largest_input(tensor) for tensor in tensors), default=0)

    def inputs(self, tensor: OutputTensor) -> tuple[StoredSlice, ...]:
        """The slices that hold an output's tensor."""
        return () if tensor.spec is None else self.source.tensors[tensor.spec.name, tensor.state]

    def copies(self, tensor: OutputTensor) -> tuple[Copy, ...]:
        """The copies that make an output's whole slice."""
        if tensor.placement is None:
            return ()
        return copies_between(tensor.placement, tuple(piece.placement for piece in self.inputs(tensor)))

    def _read(self, tensor: OutputTensor) -> int:
        if tensor.spec is None or tensor.placement is None:
            return 0
        rows = sum(copy.length for copy in self.copies(tensor))
        elements = torch.Size(tensor.slice_shape).numel() // max(1, tensor.placement.rows) * rows
        return elements * self.inputs(tensor)[0].dtype.itemsize

    def _largest_input(self, tensor: OutputTensor) -> int:
        used = {copy.source for copy in self.copies(tensor)}
        return max((piece.size for number, piece in enumerate(self.inputs(tensor)) if number in used), default=0)


def _slice_size(tensor: OutputTensor) -> int:
    return torch.Size(tensor.slice_shape).numel() * tensor.dtype.itemsize
