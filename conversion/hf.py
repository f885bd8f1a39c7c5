"""Hugging Face's GPT-2: config.json, safetensors under GPT2LMHeadModel's names, tokenizer, generation defaults."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import torch

from conversion.cast import Cast, dtype_name
from conversion.checkpoint import Checkpoint
from conversion.safetensors_writer import SafetensorsWriter, TensorEntry
from conversion.tokenizer import write_tokenizer
from foundation.files import write_json
from training.model.tensors import TensorSpec, tensor_table

# The attribute of GPT2LMHeadModel that holds the GPT; its lm_head is tied to wte and has no tensor.
PREFIX = "transformer."
_FILE_BYTES = 5 * 10**9


def write_hf(
    folder: Path,
    checkpoint: Checkpoint,
    tensors: Iterator[tuple[TensorSpec, torch.Tensor]],
    cast: Cast,
    file_bytes: int = _FILE_BYTES,
) -> None:
    """Write the whole model into `folder`, in files of at most `file_bytes` (or one tensor)."""
    write_model_folder(folder, checkpoint, cast.dtype)
    groups = _files(checkpoint, cast.dtype, file_bytes)
    for name, entries in groups.items():
        with SafetensorsWriter(folder / name, entries) as writer:
            for spec, whole in itertools.islice(tensors, len(entries)):
                tensor = cast(spec.name, whole)
                writer.write(PREFIX + spec.hf_name, tensor.t() if spec.hf_transposed else tensor)
    if len(groups) > 1:
        weight_map = {tensor: name for name, entries in groups.items() for tensor in entries}
        size = sum(entry.size for entries in groups.values() for entry in entries.values())
        write_json(
            folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map}
        )


def write_model_folder(folder: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    """Write what is beside the weights: config.json, generation_config.json and the tokenizer."""
    separator = write_tokenizer(folder, checkpoint)
    write_json(folder / "config.json", _config(checkpoint, dtype, separator))
    write_json(folder / "generation_config.json", {"bos_token_id": separator, "eos_token_id": separator})


def _config(checkpoint: Checkpoint, dtype: torch.dtype, separator: int) -> dict[str, object]:
    model = checkpoint.model
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_positions": model.sequence_length,
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": model.num_attention_heads,
        "n_inner": model.ffn_hidden_size,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.layernorm_epsilon,
        "initializer_range": model.init_std,
        "tie_word_embeddings": True,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "dtype": dtype_name(dtype),
    }


def _files(checkpoint: Checkpoint, dtype: torch.dtype, file_bytes: int) -> dict[str, dict[str, TensorEntry]]:
    """Entries by file name: one model.safetensors, or numbered files where that would be too large."""
    groups: list[dict[str, TensorEntry]] = [{}]
    free = file_bytes
    for spec in tensor_table(checkpoint.model):
        entry = TensorEntry(spec.shape[::-1] if spec.hf_transposed else spec.shape, dtype)
        if entry.size > free and groups[-1]:
            groups.append({})
            free = file_bytes
        groups[-1][PREFIX + spec.hf_name] = entry
        free -= entry.size
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, start=1)}


def weights_bytes(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Bytes of the whole model's weights in `dtype`."""
    return sum(math.prod(spec.shape) for spec in tensor_table(checkpoint.model)) * dtype.itemsize
