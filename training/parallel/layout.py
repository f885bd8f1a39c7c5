"""The 3D layout: how many ranks each kind of parallelism has, and which rank is where."""

from typing import NamedTuple

from pydantic import Field

from foundation.config import StrictModel
from foundation.errors import UserError
from training.model.config import ModelConfig


class Coordinate(NamedTuple):
    """A rank's place in the layout."""

    pipeline: int
    data: int
    tensor: int


class Layout(StrictModel):
    """Sizes of the three kinds of parallelism (Smith et al. 2022, section 2.2).

    Ranks are numbered with tensor fastest, then data, then pipeline: a tensor-parallel group is
    consecutive ranks, so one node, and stages are spread across nodes, where traffic is least.
    """

    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    sequence_parallel: bool = Field(
        default=False,
        description="tensor-parallel ranks share the sequence between sliced regions; no effect without slices",
    )

    def __str__(self) -> str:
        shared = " with sequence" if self.sequence_parallel and self.tensor_parallel_size > 1 else ""
        return (
            f"tensor {self.tensor_parallel_size}{shared} x pipeline {self.pipeline_parallel_size} "
            f"x data {self.data_parallel_size}"
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def coordinate(self, rank: int) -> Coordinate:
        """Where a global rank sits."""
        rest, tensor = divmod(rank, self.tensor_parallel_size)
        pipeline, data = divmod(rest, self.data_parallel_size)
        return Coordinate(pipeline, data, tensor)

    def tensor_groups(self) -> list[list[int]]:
        """The global ranks of each tensor-parallel group."""
        size = self.tensor_parallel_size
        return [list(range(first, first + size)) for first in range(0, self.world_size, size)]

    def check_model(self, model: ModelConfig) -> None:
        """Raise UserError, with layouts that would work, when this layout cannot hold the model."""
        heads = model.num_attention_heads
        if heads % self.tensor_parallel_size:
            raise UserError(
                f"layout.tensor_parallel_size {self.tensor_parallel_size} does not divide the model's {heads} "
                f"attention heads; sizes that do: {', '.join(map(str, _divisors(heads)))}"
            )
        if self.sequence_parallel and model.sequence_length % self.tensor_parallel_size:
            raise UserError(
                f"layout.tensor_parallel_size {self.tensor_parallel_size} does not divide model.sequence_length "
                f"{model.sequence_length}, as layout.sequence_parallel needs; choose others, or turn it off"
            )
        if self.pipeline_parallel_size > model.num_layers:
            raise UserError(
                f"layout.pipeline_parallel_size {self.pipeline_parallel_size} exceeds the model's {model.num_layers} "
                f"layers, and a stage without a layer would hang; use at most {model.num_layers}"
            )

    def check_batch(self, key: str, batch_size: int, micro_batch_size: int) -> None:
        """Raise UserError when a batch is not a whole number of micro-batches on every replica."""
        multiple = micro_batch_size * self.data_parallel_size
        if batch_size % multiple:
            nearest = max(1, round(batch_size / multiple)) * multiple
            raise UserError(
                f"{key} {batch_size} is not divisible by training.micro_batch_size {micro_batch_size} x "
                f"layout.data_parallel_size {self.data_parallel_size}; the nearest that is: {nearest}"
            )


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
