"""DeepSpeed's pipeline module, with what sequence parallelism and dropout add to it."""

from collections.abc import Callable
from typing import Any

from deepspeed.pipe import PipelineModule
from torch import nn

from training.parallel.collectives import TensorSlice


class SlicedPipeline(PipelineModule):  # type: ignore[misc]
    """A pipeline whose layers may share the sequence over a tensor-parallel group.

    Every tensor that is whole on each rank (LayerNorms, row-parallel biases, positions) then acts on this rank's
    rows alone, so its gradient is a part that must be summed over the group before it is measured, clipped and
    used (Korthikanti et al. 2022, section 4.2.2). `before_micro_batch` is called at each one's forward pass in
    training; the other options are DeepSpeed's.
    """

    def __init__(self, *, tensor_slice: TensorSlice, before_micro_batch: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._tensor_slice = tensor_slice
        self._before_micro_batch = before_micro_batch

    def forward(self, inputs: Any) -> Any:
        """This stage's layers, on one micro-batch."""
        if self.training:
            self._before_micro_batch()
        return super().forward(inputs)

    def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
        """What DeepSpeed all-reduces once a step, before data parallelism's reduction: tied and shared parameters.

        Here the sums cost one small collective a tensor and step rather than a micro-batch, and add the
        accumulated gradients, which are fp32 under bf16 too.
        """
        tied: list[tuple[nn.Parameter, Any]] = super().get_tied_weights_and_groups()
        if not self._tensor_slice.sequence_parallel:
            return tied
        whole = [parameter for parameter in self.parameters() if not parameter.tensor_model_parallel]
        return tied + [(parameter, self._tensor_slice.group) for parameter in whole]
