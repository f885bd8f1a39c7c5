"""Reading a checkpoint of any layout, a tensor at a time."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from foundation.manifest import Manifest
from training.checkpoint.names import OPTIMIZER_STATES, optimizer_file, stage_of
from training.model.config import ModelConfig
from training.model.slicing import join_slices, take_slice
from training.model.tensors import TensorSpec
from training.parallel.layout import Layout


class CheckpointReader:
    """Slices for the layout that asks, put together from the slices and fragments of the one that wrote."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._layout = Layout.model_validate(manifest.about["layout"])
        self._model = ModelConfig.model_validate(manifest.about["model"])
        self._bounds: list[int] = manifest.about["stage_bounds"]
        self._files: dict[str, Any] = {}

    @property
    def optimizer_step(self) -> int:
        """How many updates Adam has made, for its bias correction."""
        return int(self._open(optimizer_file(OPTIMIZER_STATES[0], 0, 0, 0)).metadata()["step"])

    def optimizer_slice(self, spec: TensorSpec, state: str, rank: int, size: int) -> torch.Tensor:
        """Slice `rank` of `size` of a tensor's `master`, `exp_avg` or `exp_avg_sq`, fp32."""
        writers = self._layout.tensor_parallel_size
        if size == writers:
            return self._written_slice(spec, state, rank)
        whole = join_slices(spec, [self._written_slice(spec, state, writer) for writer in range(writers)])
        return take_slice(spec, whole, self._model, rank, size)

    def _written_slice(self, spec: TensorSpec, state: str, rank: int) -> torch.Tensor:
        shape = spec.slice_shape(self._model, self._layout.tensor_parallel_size)
        flat = torch.full((int(torch.Size(shape).numel()),), torch.nan)
        stage = stage_of(spec.layer, self._bounds)
        for replica in range(self._layout.data_parallel_size):
            file = self._open(optimizer_file(state, stage, rank, replica))
            start = (file.metadata() or {}).get(spec.name)
            if start is not None:
                fragment = file.get_tensor(spec.name)
                flat[int(start) : int(start) + fragment.numel()] = fragment
        return flat.view(shape)

    def _open(self, name: str) -> Any:
        if name not in self._files:
            self._files[name] = safe_open(self._folder / name, framework="pt")
        return self._files[name]
