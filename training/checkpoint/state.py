"""A rank's part of the training state, in and out of DeepSpeed's ZeRO-1 optimizers.

ZeRO-1 flattens each parameter group and gives every replica an equal part, so a replica holds of each
parameter a consecutive fragment, or nothing. `_hp_mapping`, which DeepSpeed leaves on every parameter
for such purposes, says which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.checkpoint.names import OPTIMIZER_STATES
from training.checkpoint.reader import CheckpointReader
from training.model.config import ModelConfig
from training.model.tensors import LayerKind, TensorSpec, layer_kinds, layer_tensors
from training.parallel.collectives import TensorSlice


@dataclass(frozen=True)
class LocalTensor:
    """A parameter of this rank. `owned` is False for the head's copy of the tied embedding."""

    spec: TensorSpec
    parameter: nn.Parameter
    owned: bool


@dataclass(frozen=True)
class Snapshot:
    """Copies on the host of what this rank has to write."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, dict[str, torch.Tensor]]  # a state's fragments by the tensor's name
    optimizer_metadata: dict[str, str]


def local_tensors(engine: Any, model: ModelConfig) -> Iterator[LocalTensor]:
    """The table's tensors that this rank holds slices of, in pipeline order."""
    module = engine.module
    first = module._local_start
    for number in range(first, module._local_stop):
        layer = module.forward_funcs[number - first]
        for spec in layer_tensors(model, number):
            yield LocalTensor(spec, layer.get_parameter(spec.parameter), owned=True)
        if layer_kinds(model)[number] is LayerKind.HEAD and first > 0:
            for spec in layer_tensors(model, 0):
                yield LocalTensor(spec, module.tied_modules["embedding"].get_parameter(spec.parameter), owned=False)


def take_snapshot(engine: Any, model: ModelConfig, *, with_weights: bool) -> Snapshot:
    """Copy this rank's fragments, and its slices of the weights when it is the replica that writes them."""
    weights: dict[str, torch.Tensor] = {}
    optimizer: dict[str, dict[str, torch.Tensor]] = {state: {} for state in OPTIMIZER_STATES}
    metadata: dict[str, str] = {}
    for tensor in local_tensors(engine, model):
        if not tensor.owned:
            continue
        if with_weights:
            weights[tensor.spec.name] = _host_copy(tensor.parameter)
        fragment = _Fragment.of(engine, tensor.parameter)
        if fragment is not None:
            for state, fragments in optimizer.items():
                fragments[tensor.spec.name] = _host_copy(fragment.view(state))
            metadata[tensor.spec.name] = str(fragment.start)
            metadata["step"] = str(int(fragment.state["step"]))
    return Snapshot(weights, optimizer, metadata)


@torch.no_grad()
def restore(engine: Any, model: ModelConfig, tensor_slice: TensorSlice, reader: CheckpointReader) -> None:
    """Set this rank's weights and optimizer from a checkpoint of any layout.

    Weights are the masters rounded to the precision of training, which is what the optimizer's step leaves.
    """
    for tensor in local_tensors(engine, model):
        fragment = _Fragment.of(engine, tensor.parameter)
        for key in OPTIMIZER_STATES:
            held = reader.optimizer_slice(tensor.spec, key, tensor_slice.rank, tensor_slice.size)
            if key == "master":
                tensor.parameter.copy_(held)
            if fragment is not None:
                view = fragment.view(key)
                view.copy_(held.flatten()[fragment.start : fragment.start + view.numel()])
                fragment.state["step"].fill_(reader.optimizer_step)


@dataclass(frozen=True)
class _Fragment:
    """The part of one parameter that this replica updates: a view of ZeRO-1's flat partition."""

    master: torch.Tensor
    start: int
    state: dict[str, torch.Tensor]
    offset: int

    @classmethod
    def of(cls, engine: Any, parameter: nn.Parameter) -> "_Fragment | None":
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return None
        optimizer = engine.optimizer.optimizer
        flat = optimizer.param_groups[mapping.param_group_index]["params"][0]
        state = optimizer.state[flat]
        if not state:
            # What AdamW would make at its first step.
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(flat), torch.zeros_like(flat)
        return cls(mapping.hp_fragment, mapping.lp_fragment_address.start, state, mapping.hp_fragment_address.start)

    def view(self, key: str) -> torch.Tensor:
        if key == "master":
            return self.master
        return self.state[key].narrow(0, self.offset, self.master.numel())


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
