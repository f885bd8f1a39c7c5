"""What conversion reads: a model's tensors by the table's names, as slices that lie in files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conversion.placement import Placement, copies_between
from conversion.stored import StoredSlice
from foundation.errors import UserError
from foundation.manifest import FileRecord, Manifest, check_manifest
from training.model.config import ModelConfig
from training.model.tensors import Slicing, TensorSpec, tensor_table
from training.parallel.layout import Layout

WEIGHT = "weight"


@dataclass(frozen=True)
class Source:
    """A checkpoint of any format, of which only headers and manifests have been read.

    `tensors` has the slices of every tensor of the table by (name, state), in order of rank; the state is "weight" or
    one of the optimizer's ("master", "exp_avg", "exp_avg_sq"). `identity` names the contents wherever they lie; it is
    empty in a plan without a checkpoint. `about` is what a training checkpoint needs besides tensors.
    """

    format: str
    path: Path
    identity: str
    model: ModelConfig
    dtype: torch.dtype
    layout: Layout
    tensors: Mapping[tuple[str, str], tuple[StoredSlice, ...]] = field(repr=False)
    step: int | None = None
    tokenizer: Path | None = None  # a folder with vocab.json and merges.txt
    about: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)  # what its own manifest says of its files

    @property
    def states(self) -> tuple[str, ...]:
        """ "weight", and the optimizer's states where the checkpoint has them."""
        return tuple(dict.fromkeys(state for _, state in self.tensors))

    @property
    def size(self) -> int:
        """Bytes of all slices."""
        return sum(piece.size for pieces in self.tensors.values() for piece in pieces)

    def problems(self, names: Sequence[str]) -> list[str]:
        """What contradicts the checkpoint's own manifest about these files, sizes and SHA-256; a line a file."""
        records = {name: self.files[name] for name in names}
        return check_manifest(self.path, Manifest(format=self.format, about={}, files=records))

    def check_complete(self) -> None:
        """Raise UserError unless the slices of every tensor of the table are there and make it whole."""
        states = self.states
        for spec in tensor_table(self.model):
            for state in states:
                pieces = self.tensors.get((spec.name, state))
                if not pieces:
                    raise UserError(f"{self.path} has no tensor {spec.name} ({state})")
                rows = spec.shape[pieces[0].placement.dimension]
                whole = Placement(pieces[0].placement.dimension, rows, rows)
                try:
                    copies_between(whole, tuple(piece.placement for piece in pieces))
                except ValueError as error:
                    raise UserError(f"{self.path}: tensor {spec.name} ({state}) is not whole: {error}") from None


def check_replicas(source: Source, spec: TensorSpec, pieces: Sequence[StoredSlice]) -> None:
    """Raise UserError naming tensor, ranks and files when replicas of a tensor differ. They are never averaged."""
    if spec.slicing is not Slicing.REPLICATED or len(pieces) < 2:
        return
    with pieces[0].open() as first:
        for rank, piece in enumerate(pieces[1:], start=1):
            with piece.open() as other:
                if not torch.equal(bits(first), bits(other)):
                    files = ", ".join(str(found.extents[0].file) for found in (pieces[0], piece))
                    raise UserError(
                        f"replicated tensor {spec.name} differs between tensor-parallel ranks 0 and {rank}: "
                        f"files {files}; training went wrong, and an average would hide it"
                    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: compared so, a NaN equals itself and 0 is not -0."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
