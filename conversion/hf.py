"""Hugging Face's GPT-2: config.json, safetensors under GPT2LMHeadModel's names, tokenizer, generation defaults."""

from pathlib import Path

import torch

from conversion.cast import dtype_name
from conversion.placement import place
from conversion.plan import OutputFile, OutputTensor
from conversion.source import Source
from conversion.target import Target, groups_under
from conversion.tokenizer import write_tokenizer
from foundation.files import write_json
from foundation.formats import HF
from training.model.tensors import TensorSpec, tensor_table

# The attribute of GPT2LMHeadModel that holds the GPT; its lm_head is tied to wte and has no tensor.
PREFIX = "transformer."


def hf_target(source: Source, dtype: torch.dtype, state: str, file_bytes: int) -> Target:
    """The whole model in files of at most `file_bytes` (or one tensor)."""
    groups = groups_under([_output(source, spec, dtype, state) for spec in tensor_table(source.model)], file_bytes)
    names = ["model.safetensors"]
    if len(groups) > 1:
        names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    files = tuple(OutputFile(name, tuple(group)) for name, group in zip(names, groups, strict=True))

    def write_beside(folder: Path) -> None:
        write_model_folder(folder, source, dtype)
        if len(files) > 1:
            size = sum(file.size for file in files)
            weight_map = {tensor.key: file.name for file in files for tensor in file.tensors}
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            write_json(folder / "model.safetensors.index.json", index)

    about = {"contract": "GPT2LMHeadModel", "tensor_parallel_size": 1}
    return Target(HF, f"hf, {dtype_name(dtype)}", files, about, write_beside)


def write_model_folder(folder: Path, source: Source, dtype: torch.dtype) -> None:
    """Write what is beside the weights: config.json, generation_config.json, and the tokenizer where there is one."""
    separator = write_tokenizer(folder, source)
    tokens = {} if separator is None else {"bos_token_id": separator, "eos_token_id": separator}
    write_json(folder / "config.json", {**_config(source, dtype), **tokens})
    write_json(folder / "generation_config.json", tokens)


def _output(source: Source, spec: TensorSpec, dtype: torch.dtype, state: str) -> OutputTensor:
    shape = spec.shape[::-1] if spec.hf_transposed else spec.shape
    # One slice has no padding: the true vocabulary.
    placement = place(spec, source.model, 0, 1, vocabulary=source.model.vocab_size)
    return OutputTensor(PREFIX + spec.hf_name, shape, dtype, spec, state, placement, spec.hf_transposed)


def _config(source: Source, dtype: torch.dtype) -> dict[str, object]:
    model = source.model
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
        "dtype": dtype_name(dtype),
    }
