"""The model that a Megatron checkpoint's training arguments describe; other architectures are refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conversion.torch_zip import Placeholder
from foundation.errors import UserError
from training.model.config import ModelConfig

# The values that this project's GPT has; an argument that a version of Megatron did not know has such a value.
_SWITCHES: Mapping[str, tuple[object, ...]] = {
    "add_bias_linear": (True,),
    "disable_bias_linear": (False,),
    "add_position_embedding": (True,),
    "position_embedding_type": ("learned_absolute",),
    "use_rotary_position_embeddings": (False,),
    "untie_embeddings_and_output_weights": (False,),
    "normalization": ("LayerNorm",),
    "apply_layernorm_1p": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "swiglu": (False,),
    "squared_relu": (False,),
    "num_experts": (None, 0, 1, [1]),
    "group_query_attention": (False,),
    "virtual_pipeline_model_parallel_size": (None, 1),
}


def read_args(path: Path, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The saved training arguments by name; empty where there are none."""
    args = saved.get("args")
    if args is None:
        return {}
    fields = args.state if isinstance(args, Placeholder) else args
    if not isinstance(fields, dict):
        raise UserError(f"{path}: its args are no argparse.Namespace; is this a Megatron checkpoint?")
    return fields


def describe_model(
    path: Path, args: Mapping[str, Any], shapes: Mapping[str, int], vocab_size: int | None, heads: int | None
) -> ModelConfig:
    """The model, from `args` and the `shapes` of the tensors, which must agree.

    `shapes` has num_layers, hidden_size, max_position_embeddings and padded_vocab_size. The tokens that the tokenizer
    knows are `vocab_size`, else the args', else all rows. Raises UserError naming what does not fit or is missing.
    """
    check_switches(path, args)
    for name, found in shapes.items():
        if args.get(name) is not None and args[name] != found:
            raise UserError(f"{path}: its args say {name} {args[name]}, but its tensors make it {found}")
    said = args.get("num_attention_heads")
    if None not in (said, heads) and said != heads:
        raise UserError(f"{path}: its args say num_attention_heads {said}, but --num-attention-heads is {heads}")
    heads = said or heads
    if heads is None:
        raise UserError(
            f"{path} has no args, and tensors do not tell the number of attention heads; give --num-attention-heads"
        )
    vocabulary = vocab_size or _tokens(args) or shapes["padded_vocab_size"]
    if vocabulary > shapes["padded_vocab_size"]:
        rows = shapes["padded_vocab_size"]
        raise UserError(f"{path}: the embedding has {rows} rows, fewer than the vocabulary of {vocabulary}")
    try:
        model = ModelConfig(
            num_layers=shapes["num_layers"],
            hidden_size=shapes["hidden_size"],
            num_attention_heads=heads,
            sequence_length=shapes["max_position_embeddings"],
            vocab_size=vocabulary,
            vocab_size_multiple=args.get("make_vocab_size_divisible_by") or 128,
            layernorm_epsilon=args.get("layernorm_epsilon") or args.get("norm_epsilon") or 1e-5,
            attention_dropout=args.get("attention_dropout") or 0.0,
            hidden_dropout=args.get("hidden_dropout") or 0.0,
        )
    except ValidationError as error:
        raise UserError(f"{path}: its args do not make a model: {error.errors()[0]['msg']}") from None
    for name, value in (("ffn_hidden_size", model.ffn_hidden_size), ("kv_channels", model.head_size)):
        if args.get(name) not in (None, value):
            raise UserError(f"{path}: {name} is {args[name]}, but this project's GPT has only {value} at its size")
    return model


def _tokens(args: Mapping[str, Any]) -> int | None:
    tokens = args.get("vocab_size")
    if not isinstance(tokens, int):
        return None
    # This one of Megatron's tokenizers puts the end of a document behind the tokens that it counts.
    return tokens + 1 if args.get("tokenizer_type") == "NullTokenizer" else tokens


def check_switches(path: Path, args: Mapping[str, Any]) -> None:
    """Raise UserError naming an argument that makes another architecture than this project's GPT."""
    for name, values in _SWITCHES.items():
        # A fork's own class says nothing; whatever it means shows in the tensors.
        if name in args and not isinstance(args[name], Placeholder) and args[name] not in values:
            raise UserError(f"{path}: {name} is {args[name]!r}, but this project's GPT has only {values[0]!r}")
    if args.get("bias_gelu_fusion") is False and not args.get("openai_gelu"):
        raise UserError(
            f"{path}: bias_gelu_fusion is False, so GELU in its exact form; this project's GPT has the tanh form"
        )
