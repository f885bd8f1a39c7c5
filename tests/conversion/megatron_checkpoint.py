"""A Megatron checkpoint as Megatron-LM writes it, put together from a GPT-2 by hand, without the table of tensors.

The layouts of the fused projection are those in the comments of Megatron-LM's `_transpose_first_dim`.
"""

from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from training.model.config import ModelConfig


def write_megatron_checkpoint(
    root: Path, gpt2: Any, model: ModelConfig, *, tensor: int = 1, pipeline: int = 1, version: float = 3.0, **args: Any
) -> Path:
    """Write `iter_0000300` and the file that names it; return the folder. More `args` replace the usual ones."""
    folder = root / "iter_0000300"
    for rank in range(tensor):
        for stage in range(pipeline):
            name = f"mp_rank_{rank:02d}" if pipeline == 1 else f"mp_rank_{rank:02d}_{stage:03d}"
            (folder / name).mkdir(parents=True)
            saved = {
                "args": Namespace(**{**usual_args(model, tensor, pipeline), **args}),
                "checkpoint_version": version,
                "iteration": 300,
                "model": stage_dict(gpt2, model, rank, tensor, stage, pipeline, version),
                "optimizer": {"state": {0: {"exp_avg": torch.ones(4)}}},
                "rng_state": [{"random_rng_state": (3, (1, 2), None), "torch_rng_state": torch.get_rng_state()}],
            }
            if version == 0:
                del saved["checkpoint_version"]
            torch.save(saved, folder / name / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("300", encoding="utf-8")
    return folder


def usual_args(model: ModelConfig, tensor: int, pipeline: int) -> dict[str, Any]:
    """Some of what Megatron's arguments hold."""
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": 4 * model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "max_position_embeddings": model.sequence_length,
        "padded_vocab_size": padded(model, tensor),
        "vocab_size": model.vocab_size,
        "layernorm_epsilon": 1e-5,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "params_dtype": torch.float32,
        "bias_gelu_fusion": True,
        "swiglu": False,
        "num_query_groups": None,
    }


def padded(model: ModelConfig, tensor: int) -> int:
    """Rows of the embedding over all ranks."""
    return -(-model.vocab_size // (128 * tensor)) * 128 * tensor


def stage_dict(
    gpt2: Any, model: ModelConfig, rank: int, tensor: int, stage: int, pipeline: int, version: float
) -> dict[str, Any]:
    """`model` of one file."""
    weights = {name: weight.detach() for name, weight in gpt2.transformer.state_dict().items()}
    rows = padded(model, tensor) // tensor
    embedding = torch.zeros(padded(model, tensor), model.hidden_size)
    embedding[: model.vocab_size] = weights["wte.weight"]
    mine = embedding[rank * rows : (rank + 1) * rows].clone()
    language_model: dict[str, Any] = {}
    if stage == 0:
        language_model["embedding"] = {
            "word_embeddings": {"weight": mine},
            "position_embeddings": {"weight": weights["wpe.weight"]},
        }
    encoder: OrderedDict[str, torch.Tensor] = OrderedDict()
    layers = model.num_layers // pipeline
    for number in range(layers):
        for name, weight in _block(weights, model, stage * layers + number, rank, tensor, version).items():
            encoder[f"layers.{number}.{name}"] = weight.contiguous()
    if stage == pipeline - 1:
        encoder["final_layernorm.weight"] = weights["ln_f.weight"]
        encoder["final_layernorm.bias"] = weights["ln_f.bias"]
    language_model["transformer" if version < 2 else "encoder"] = encoder
    whole: dict[str, Any] = {"language_model": language_model}
    if stage == pipeline - 1 and pipeline > 1:
        whole["word_embeddings_for_head"] = {"weight": mine.clone()}
    return whole


def _block(
    weights: dict[str, torch.Tensor], model: ModelConfig, layer: int, rank: int, tensor: int, version: float
) -> dict[str, torch.Tensor]:
    h, width, ffn = model.hidden_size, model.hidden_size // tensor, 4 * model.hidden_size // tensor
    attention = "attention" if version < 2 else "self_attention"
    own, inner = slice(rank * width, (rank + 1) * width), slice(rank * ffn, (rank + 1) * ffn)

    def get(name: str) -> torch.Tensor:
        return weights[f"h.{layer}.{name}"]

    qkv = get("attn.c_attn.weight").t(), get("attn.c_attn.bias")
    return {
        "input_layernorm.weight": get("ln_1.weight"),
        "input_layernorm.bias": get("ln_1.bias"),
        f"{attention}.query_key_value.weight": fuse(*qkv[0].split(h), model, rank, tensor, version),
        f"{attention}.query_key_value.bias": fuse(*qkv[1].split(h), model, rank, tensor, version),
        f"{attention}.dense.weight": get("attn.c_proj.weight").t()[:, own],
        f"{attention}.dense.bias": get("attn.c_proj.bias"),
        "post_attention_layernorm.weight": get("ln_2.weight"),
        "post_attention_layernorm.bias": get("ln_2.bias"),
        "mlp.dense_h_to_4h.weight": get("mlp.c_fc.weight").t()[inner],
        "mlp.dense_h_to_4h.bias": get("mlp.c_fc.bias")[inner],
        "mlp.dense_4h_to_h.weight": get("mlp.c_proj.weight").t()[:, inner],
        "mlp.dense_4h_to_h.bias": get("mlp.c_proj.bias"),
    }


def fuse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    model: ModelConfig,
    rank: int,
    tensor: int,
    version: float,
) -> torch.Tensor:
    """One rank's rows: [3, heads, head size] in version 0, [heads, head size, 3] in 1, [heads, 3, head size] after."""
    heads, size = model.num_attention_heads, model.hidden_size // model.num_attention_heads
    mine = heads // tensor
    parts = [
        part.reshape(heads, size, *part.shape[1:])[rank * mine : (rank + 1) * mine] for part in (query, key, value)
    ]
    axis = {0: 0, 1.0: 2}.get(version, 1)
    return torch.stack(parts, dim=axis).reshape(3 * mine * size, *query.shape[1:])
