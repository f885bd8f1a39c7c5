"""vLLM's `sharded_state`: each tensor-parallel worker's state dict in a file of its own, loaded without slicing.

The contract is vLLM 0.32's GPT-2. vLLM only warns about a tensor that is too small and then runs on
garbage, so `serving` refuses a number of slices other than the one written here.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from conversion.cast import Cast
from conversion.checkpoint import Checkpoint
from conversion.hf import PREFIX, write_model_folder
from conversion.safetensors_writer import SafetensorsWriter, TensorEntry
from foundation.errors import UserError
from training.model.config import ModelConfig
from training.model.slicing import take_slice
from training.model.tensors import Slicing, TensorSpec, tensor_table

CONTRACT = "vllm 0.32 gpt2"
# vllm.model_executor.layers.vocab_parallel_embedding.DEFAULT_VOCAB_PADDING_SIZE, whatever the number of slices
_VOCABULARY_MULTIPLE = 64
_HEAD = "lm_head.weight"
# KV-cache scales of every attention layer; 1 where the cache is not quantised, but the loader demands them.
_SCALES = ("_q_scale", "_k_scale", "_v_scale", "_prob_scale")


def check_divides(model: ModelConfig, tensor_parallel_size: int) -> None:
    """Raise UserError when vLLM could not cut this model into so many slices."""
    for what, number in (("attention heads", model.num_attention_heads), ("vocabulary rows", _padded_rows(model))):
        if number % tensor_parallel_size:
            sizes = [size for size in range(1, number + 1) if number % size == 0][:6]
            raise UserError(
                f"--tensor-parallel-size {tensor_parallel_size} does not divide the model's {number} {what}; "
                f"possible: {', '.join(map(str, sizes))}"
            )


def write_vllm(
    folder: Path,
    checkpoint: Checkpoint,
    tensors: Iterator[tuple[TensorSpec, torch.Tensor]],
    cast: Cast,
    tensor_parallel_size: int,
) -> None:
    """Write one file a slice, all in step: every tensor of the checkpoint is read once."""
    write_model_folder(folder, checkpoint, cast.dtype)
    model = checkpoint.model
    entries = _entries(model, cast.dtype, tensor_parallel_size)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(SafetensorsWriter(folder / f"model-rank-{rank}-part-0.safetensors", entries))
            for rank in range(tensor_parallel_size)
        ]
        for writer in writers:
            for name in _scale_names(model):
                writer.write(name, torch.ones((), dtype=torch.float32))
        for spec, whole in tensors:
            name, worker_spec = _worker_tensor(spec, model)
            tensor = _pad_rows(cast(spec.name, whole), worker_spec.shape[0])
            for rank, writer in enumerate(writers):
                writer.write(name, take_slice(worker_spec, tensor, model, rank, tensor_parallel_size))


def slices_bytes(checkpoint: Checkpoint, dtype: torch.dtype, tensor_parallel_size: int) -> int:
    """Bytes of all the files' tensors in `dtype`."""
    entries = _entries(checkpoint.model, dtype, tensor_parallel_size)
    return sum(entry.size for entry in entries.values()) * tensor_parallel_size


def _entries(model: ModelConfig, dtype: torch.dtype, size: int) -> dict[str, TensorEntry]:
    entries = {name: TensorEntry((), torch.float32) for name in _scale_names(model)}
    for spec in tensor_table(model):
        name, worker_spec = _worker_tensor(spec, model)
        entries[name] = TensorEntry(worker_spec.slice_shape(model, size), dtype)
    return entries


def _worker_tensor(spec: TensorSpec, model: ModelConfig) -> tuple[str, TensorSpec]:
    """A tensor's name and slicing in vLLM; the tied embedding exists under the head's name only."""
    if spec.slicing is Slicing.VOCABULARY:
        shape = (_padded_rows(model), *spec.shape[1:])
        return _HEAD, dataclasses.replace(spec, shape=shape, slicing=Slicing.COLUMN)
    return PREFIX + spec.hf_name, spec


def _scale_names(model: ModelConfig) -> list[str]:
    return [f"{PREFIX}h.{number}.attn.attn.{scale}" for number in range(model.num_layers) for scale in _SCALES]


def _padded_rows(model: ModelConfig) -> int:
    return -(-model.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE


def _pad_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    if tensor.shape[0] == rows:
        return tensor
    padded = tensor.new_zeros((rows, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    return padded
