"""Megatron-LM's classic checkpoints as a target: a folder a rank, in it the file that Megatron's `torch` format has.

Layout and names are those of Megatron-LM's legacy GPT model and `get_checkpoint_name`, checkpoint version 3
(https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/checkpointing.py). There is no optimizer and
no random state in it: load with --no-load-optim --no-load-rng or --finetune.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from conversion.cast import dtype_name
from conversion.placement import Order, place
from conversion.plan import OutputFile, OutputTensor
from conversion.source import Source
from conversion.target import Target
from conversion.tokenizer import copy_tokenizer_files
from foundation.errors import UserError
from foundation.files import write_text
from foundation.formats import MEGATRON
from training.model.config import ModelConfig
from training.model.tensors import LayerKind, TensorSpec, layer_tensors
from training.parallel.layout import Layout

LATEST_ITERATION = "latest_checkpointed_iteration.txt"
RELEASE = "release"
CHECKPOINT_VERSION = 3.0
HEAD = "word_embeddings_for_head"
_FIRST_BLOCK = 2  # of the pipeline's layers; two embeddings come before it


def megatron_target(source: Source, dtype: torch.dtype, state: str, layout: Layout) -> Target:
    """A file for each tensor rank of each pipeline stage, and the file that names the iteration.

    Raises UserError when Megatron could not cut the model so.
    """
    _check_divides(source.model, layout)
    folder = RELEASE if source.step is None else f"iter_{source.step:07d}"
    files = [
        _file(source, dtype, state, layout, rank, stage, folder)
        for stage in range(layout.pipeline_parallel_size)
        for rank in range(layout.tensor_parallel_size)
    ]

    def write_beside(out: Path) -> None:
        write_text(out / LATEST_ITERATION, RELEASE if source.step is None else str(source.step))
        if source.tokenizer is not None:
            copy_tokenizer_files(source.tokenizer, out)

    return Target(
        MEGATRON,
        f"megatron, {dtype_name(dtype)}, {layout}",
        tuple(files),
        {"layout": layout.model_dump(mode="json"), "checkpoint_version": CHECKPOINT_VERSION},
        write_beside,
    )


def megatron_name(spec: TensorSpec, first_block: int) -> tuple[str, ...]:
    """The keys, one inside the other, under which a stage's `language_model` has a tensor.

    Blocks are numbered from 0 in each stage; `first_block` is the number of the stage's first one in the model.
    """
    if spec.name.startswith(f"{LayerKind.BLOCK.value}."):
        number = spec.layer - _FIRST_BLOCK - first_block
        parameter = (
            spec.parameter.replace("attention.", "self_attention.", 1) if _of_attention(spec) else spec.parameter
        )
        return "encoder", f"layers.{number}.{parameter}"
    if spec.name.startswith(f"{LayerKind.FINAL_NORM.value}."):
        return "encoder", spec.name
    return "embedding", spec.name.removesuffix(f".{spec.parameter}"), spec.parameter


def stage_specs(model: ModelConfig, blocks: int, first_block: int) -> list[TensorSpec]:
    """The tensors of a stage with so many blocks; embeddings are in the first stage, the final norm in the last."""
    first = 0 if first_block == 0 else first_block + _FIRST_BLOCK
    last = first_block + blocks + _FIRST_BLOCK + (first_block + blocks == model.num_layers)
    return [spec for layer in range(first, last) for spec in layer_tensors(model, layer)]


def _of_attention(spec: TensorSpec) -> bool:
    return spec.parameter.startswith("attention.")


def _check_divides(model: ModelConfig, layout: Layout) -> None:
    layout.check_model(model)
    stages = layout.pipeline_parallel_size
    if model.num_layers % stages:
        sizes = [size for size in range(1, model.num_layers + 1) if model.num_layers % size == 0]
        raise UserError(
            f"--pipeline-parallel-size {stages} does not divide the model's {model.num_layers} layers, and Megatron's "
            f"stages are equal; possible: {', '.join(map(str, sizes))}"
        )


def _file(
    source: Source, dtype: torch.dtype, state: str, layout: Layout, rank: int, stage: int, folder: str
) -> OutputFile:
    model, stages = source.model, layout.pipeline_parallel_size
    blocks = model.num_layers // stages
    language_model: dict[str, Any] = {}
    tensors = []
    for spec in stage_specs(model, blocks, stage * blocks):
        *parents, leaf = megatron_name(spec, stage * blocks)
        place_in = language_model
        for parent in parents:
            place_in = place_in.setdefault(parent, {})
        place_in[leaf] = _tensor(source.model, spec, ".".join([*parents, leaf]), dtype, state, rank, layout)
        tensors.append(place_in[leaf])
    tree: dict[str, Any] = {"language_model": language_model}
    if stages > 1 and stage == stages - 1:
        (embedding,) = layer_tensors(model, 0)
        tensors.append(_tensor(model, embedding, f"{HEAD}.weight", dtype, state, rank, layout))
        tree[HEAD] = {"weight": tensors[-1]}
    name = f"mp_rank_{rank:02d}" if stages == 1 else f"mp_rank_{rank:02d}_{stage:03d}"
    saved = {"args": _args(source, dtype, layout), "checkpoint_version": CHECKPOINT_VERSION, "model": tree}
    if source.step is not None:
        saved["iteration"] = source.step
    return OutputFile(f"{folder}/{name}/model_optim_rng.pt", tuple(tensors), tree=saved)


def _tensor(
    model: ModelConfig, spec: TensorSpec, key: str, dtype: torch.dtype, state: str, rank: int, layout: Layout
) -> OutputTensor:
    size = layout.tensor_parallel_size
    placement = place(spec, model, rank, size, qkv=Order.HEADS)
    return OutputTensor(key, spec.slice_shape(model, size), dtype, spec, state, placement)


def _args(source: Source, dtype: torch.dtype, layout: Layout) -> Namespace:
    """The training arguments that Megatron compares or takes over when it loads (--use-checkpoint-args)."""
    return Namespace(**_model_args(source.model, layout), **_run_args(source, dtype, layout))


def _model_args(model: ModelConfig, layout: Layout) -> Mapping[str, Any]:
    return {
        "num_layers": model.num_layers,
        "encoder_num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "kv_channels": model.head_size,
        "group_query_attention": False,
        "num_query_groups": 1,
        "seq_length": model.sequence_length,
        "encoder_seq_length": model.sequence_length,
        "max_position_embeddings": model.sequence_length,
        "add_position_embedding": True,
        "position_embedding_type": "learned_absolute",
        "use_rotary_position_embeddings": False,
        "rotary_percent": 1.0,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": model.padded_vocab_size(layout.tensor_parallel_size),
        "make_vocab_size_divisible_by": model.vocab_size_multiple,
        "untie_embeddings_and_output_weights": False,
        "add_bias_linear": True,
        "add_qkv_bias": False,
        "normalization": "LayerNorm",
        "layernorm_epsilon": model.layernorm_epsilon,
        "norm_epsilon": model.layernorm_epsilon,
        "apply_layernorm_1p": False,
        "apply_residual_connection_post_layernorm": False,
        "bias_gelu_fusion": True,  # Megatron's name for the tanh form of GELU
        "openai_gelu": False,
        "swiglu": False,
        "squared_relu": False,
        "num_experts": None,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "init_method_std": model.init_std,
        "bert_binary_head": False,
    }


def _run_args(source: Source, dtype: torch.dtype, layout: Layout) -> Mapping[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tensor_parallel_size,
        "pipeline_model_parallel_size": layout.pipeline_parallel_size,
        "virtual_pipeline_model_parallel_size": None,
        "data_parallel_size": 1,
        "world_size": layout.tensor_parallel_size * layout.pipeline_parallel_size,
        "data_parallel_random_init": False,
        "params_dtype": dtype,
        "fp16": dtype == torch.float16,
        "bf16": dtype == torch.bfloat16,
        "tokenizer_type": "GPT2BPETokenizer",
        "iteration": source.step or 0,
        "consumed_train_samples": int(source.about.get("consumed_samples", 0)),
        "consumed_valid_samples": 0,
    }
