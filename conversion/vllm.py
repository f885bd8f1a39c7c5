"""vLLM's `sharded_state`: each tensor-parallel worker's state dict in a file of its own, loaded without slicing.

The contract is vLLM 0.32's GPT-2. vLLM only warns about a tensor that is too small and then runs on
garbage, so `serving` refuses a number of slices other than the one written here.
"""

import torch

from conversion.cast import dtype_name
from conversion.hf import PREFIX, write_model_folder
from conversion.placement import place
from conversion.plan import OutputFile, OutputTensor
from conversion.source import Source
from conversion.target import Target, groups_under
from foundation.errors import UserError
from foundation.formats import VLLM
from training.model.config import ModelConfig
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


def vllm_target(source: Source, dtype: torch.dtype, state: str, tensor_parallel_size: int, file_bytes: int) -> Target:
    """One or more files of at most `file_bytes` a slice: each worker reads only its own bytes."""
    check_divides(source.model, tensor_parallel_size)
    files = []
    for rank in range(tensor_parallel_size):
        tensors = [OutputTensor(name, (), torch.float32, fill=1.0) for name in _scale_names(source.model)]
        for spec in tensor_table(source.model):
            tensors.append(vllm_tensor(source.model, spec, dtype, state, rank, tensor_parallel_size))
        for part, group in enumerate(groups_under(tensors, file_bytes)):
            files.append(OutputFile(f"model-rank-{rank}-part-{part}.safetensors", tuple(group)))
    return Target(
        VLLM,
        f"vllm, {dtype_name(dtype)}, {tensor_parallel_size} tensor slices",
        tuple(files),
        {"contract": CONTRACT, "tensor_parallel_size": tensor_parallel_size},
        lambda folder: write_model_folder(folder, source, dtype),
    )


def vllm_tensor(
    model: ModelConfig, spec: TensorSpec, dtype: torch.dtype, state: str, rank: int, size: int
) -> OutputTensor:
    """What rank `rank` of `size` holds of the tensor `spec`: name, shape and rows, for writing and reading."""
    placement = place(spec, model, rank, size, vocabulary=_padded_rows(model))
    # The tied embedding exists under the head's name only.
    name = _HEAD if spec.slicing is Slicing.VOCABULARY else PREFIX + spec.hf_name
    shape = list(spec.shape)
    shape[placement.dimension] = placement.rows
    return OutputTensor(name, tuple(shape), dtype, spec, state, placement)


def _scale_names(model: ModelConfig) -> list[str]:
    return [f"{PREFIX}h.{number}.attn.attn.{scale}" for number in range(model.num_layers) for scale in _SCALES]


def _padded_rows(model: ModelConfig) -> int:
    return -(-model.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
