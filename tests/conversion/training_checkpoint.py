"""A training checkpoint of any layout, written from a GPT-2's weights by way of the table of tensors."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from conversion.convert import Options
from conversion.convert import convert as convert_with
from foundation.formats import TRAINING
from foundation.manifest import write_manifest
from foundation.tokenizer import END_OF_TEXT
from training.checkpoint.names import weights_file
from training.model.config import ModelConfig
from training.model.slicing import take_slice
from training.model.tensors import layer_kinds, layer_tensors


def convert(source: Path, out: Path, *, overwrite: bool = False, **options: Any) -> None:
    """The verb, its options as keywords."""
    convert_with(source, out, Options(**options), overwrite=overwrite)


SMALL = ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=4, sequence_length=48, vocab_size=300)


def make_gpt2(model: ModelConfig, *, seed: int = 0, std: float = 0.2) -> Any:
    """A random GPT2LMHeadModel in float32, biases and norms random too; a wide `std` makes argmaxes clear."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.sequence_length,
        n_embd=model.hidden_size,
        n_layer=model.num_layers,
        n_head=model.num_attention_heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    torch.manual_seed(seed)
    gpt2 = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.copy_(torch.randn(parameter.shape) * std + (parameter.mean() if parameter.dim() == 1 else 0))
    return gpt2


def write_training_checkpoint(
    run: Path, gpt2: Any, model: ModelConfig, *, tensor_parallel_size: int = 1, step: int = 300, precision: str = "fp32"
) -> Path:
    """Write what training writes at two pipeline stages and return the checkpoint's folder."""
    bounds = [0, 3, len(layer_kinds(model))]
    folder = run / "checkpoints" / f"step-{step:08d}"
    (folder / "tokenizer").mkdir(parents=True)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    weights = gpt2.transformer.state_dict()
    for stage in range(len(bounds) - 1):
        for rank in range(tensor_parallel_size):
            held = {}
            for layer in range(bounds[stage], bounds[stage + 1]):
                for spec in layer_tensors(model, layer):
                    weight = weights[spec.hf_name].to(dtype)
                    whole = weight.t() if spec.hf_transposed else weight
                    held[spec.name] = take_slice(spec, whole.contiguous(), model, rank, tensor_parallel_size)
            save_file(held, folder / weights_file(stage, rank))
    write_byte_tokenizer(folder / "tokenizer")
    commit(folder, model, tensor_parallel_size=tensor_parallel_size, step=step, precision=precision)
    return folder


def commit(folder: Path, model: ModelConfig, *, tensor_parallel_size: int, step: int, precision: str) -> None:
    """Write the manifest and `latest`."""
    about = {
        "step": step,
        "consumed_samples": step * 8,
        "layout": {
            "tensor_parallel_size": tensor_parallel_size,
            "pipeline_parallel_size": 2,
            "data_parallel_size": 1,
        },
        "model": model.model_dump(),
        "precision": precision,
        "stage_bounds": [0, 3, len(layer_kinds(model))],
    }
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    write_manifest(folder, TRAINING, about, files)
    (folder.parent / "latest").write_text(folder.name, encoding="utf-8")


def write_byte_tokenizer(folder: Path) -> None:
    """A BPE of GPT-2's kind with 256 bytes, two merges and the separator: 259 tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = [("t", "h"), ("th", "e")]
    tokens = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges), END_OF_TEXT]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
