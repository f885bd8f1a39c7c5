"""The table of tensors: every tensor of the GPT, declared once.

Layer construction, initialisation, checkpoints, conversion and the planner read this table; none
of them knows a tensor's name by heart. A second architecture would be a second table. No torch here:
counting the parameters of a 530 B model takes no memory.
"""

import math
from dataclasses import dataclass
from enum import Enum

from training.model.config import ModelConfig


class Slicing(Enum):
    """How tensor parallelism cuts a tensor (Shoeybi et al. 2019, section 3)."""

    REPLICATED = "replicated"  # whole on every rank
    COLUMN = "column"  # dimension 0, the output features
    ROW = "row"  # dimension 1, the input features
    VOCABULARY = "vocabulary"  # dimension 0, padded with zero rows to equal slices
    QKV = "qkv"  # dimension 0 of each of [q; k; v], so that a rank holds [q_r; k_r; v_r]


class Init(Enum):
    """What a tensor starts as."""

    NORMAL = "normal"  # N(0, sqrt(1 / (3 h)))
    RESIDUAL = "residual"  # the same, over sqrt(2 L): the projections that write to the residual stream
    ONES = "ones"
    ZEROS = "zeros"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model.

    `layer` is its place in the pipeline's sequence of layers (see `layer_kinds`) and `parameter` its
    name inside that layer. `shape` is that of the whole tensor, [out, in] for a matrix, vocabulary
    unpadded. `hf_name` is its name in Hugging Face's GPT-2, which stores matrices as [in, out] where
    `hf_transposed`.
    """

    name: str
    layer: int
    parameter: str
    shape: tuple[int, ...]
    slicing: Slicing
    init: Init
    hf_name: str
    hf_transposed: bool = False

    def slice_shape(self, model: ModelConfig, tensor_parallel_size: int) -> tuple[int, ...]:
        """Shape of one rank's slice."""
        if self.slicing is Slicing.REPLICATED:
            return self.shape
        shape = list(self.shape)
        dimension = slicing_dimension(self.slicing)
        if self.slicing is Slicing.VOCABULARY:
            shape[0] = model.padded_vocab_size(tensor_parallel_size)
        shape[dimension] //= tensor_parallel_size
        return tuple(shape)


class LayerKind(Enum):
    """The pipeline's layers, in order: two embeddings, the blocks, the final norm, the tied head."""

    WORD_EMBEDDING = "word_embeddings"
    POSITION_EMBEDDING = "position_embeddings"
    BLOCK = "layers"
    FINAL_NORM = "final_layernorm"
    HEAD = "head"


def layer_kinds(model: ModelConfig) -> list[LayerKind]:
    """The kind of each pipeline layer; the head shares the word embedding's tensor and owns none."""
    return [
        LayerKind.WORD_EMBEDDING,
        LayerKind.POSITION_EMBEDDING,
        *[LayerKind.BLOCK] * model.num_layers,
        LayerKind.FINAL_NORM,
        LayerKind.HEAD,
    ]


def slicing_dimension(slicing: Slicing) -> int:
    """The dimension that a sliced tensor is cut along."""
    return 1 if slicing is Slicing.ROW else 0


def layer_tensors(model: ModelConfig, layer: int) -> tuple[TensorSpec, ...]:
    """The tensors that pipeline layer number `layer` owns."""
    kind = layer_kinds(model)[layer]
    h = model.hidden_size
    if kind is LayerKind.WORD_EMBEDDING:
        shape = (model.vocab_size, h)
        return (_spec(kind.value, layer, "weight", shape, Slicing.VOCABULARY, Init.NORMAL, "wte.weight"),)
    if kind is LayerKind.POSITION_EMBEDDING:
        shape = (model.sequence_length, h)
        return (_spec(kind.value, layer, "weight", shape, Slicing.REPLICATED, Init.NORMAL, "wpe.weight"),)
    if kind is LayerKind.BLOCK:
        return _block_tensors(model, layer, number=layer - 2)
    if kind is LayerKind.FINAL_NORM:
        return _norm(kind.value, layer, "", h, "ln_f")
    return ()


def tensor_table(model: ModelConfig) -> tuple[TensorSpec, ...]:
    """Every tensor of the model, in pipeline order, the tied embedding once."""
    return tuple(spec for layer in range(len(layer_kinds(model))) for spec in layer_tensors(model, layer))


def parameter_count(model: ModelConfig, tensor_parallel_size: int = 1) -> int:
    """Parameters of the whole model with the vocabulary padded for a tensor-parallel size.

    Equals Narayanan et al. 2021, eq. 2, plus the final LayerNorm's 2 h.
    """
    padding = model.padded_vocab_size(tensor_parallel_size) - model.vocab_size
    return sum(math.prod(spec.shape) for spec in tensor_table(model)) + padding * model.hidden_size


def _block_tensors(model: ModelConfig, layer: int, number: int) -> tuple[TensorSpec, ...]:
    h, ffn = model.hidden_size, model.ffn_hidden_size
    prefix, hf = f"{LayerKind.BLOCK.value}.{number}", f"h.{number}"

    def linear(
        parameter: str, hf_name: str, out_in: tuple[int, int], slicing: Slicing, init: Init
    ) -> tuple[TensorSpec, ...]:
        weight = _spec(prefix, layer, f"{parameter}.weight", out_in, slicing, init, f"{hf}.{hf_name}.weight", True)
        # A row-parallel bias is added once, after the slices' partial sums: every rank holds it whole.
        bias_slicing = Slicing.REPLICATED if slicing is Slicing.ROW else slicing
        bias = _spec(prefix, layer, f"{parameter}.bias", out_in[:1], bias_slicing, Init.ZEROS, f"{hf}.{hf_name}.bias")
        return weight, bias

    return (
        *_norm(prefix, layer, "input_layernorm.", h, f"{hf}.ln_1"),
        *linear("attention.query_key_value", "attn.c_attn", (3 * h, h), Slicing.QKV, Init.NORMAL),
        *linear("attention.dense", "attn.c_proj", (h, h), Slicing.ROW, Init.RESIDUAL),
        *_norm(prefix, layer, "post_attention_layernorm.", h, f"{hf}.ln_2"),
        *linear("mlp.dense_h_to_4h", "mlp.c_fc", (ffn, h), Slicing.COLUMN, Init.NORMAL),
        *linear("mlp.dense_4h_to_h", "mlp.c_proj", (h, ffn), Slicing.ROW, Init.RESIDUAL),
    )


def _norm(prefix: str, layer: int, parameter: str, size: int, hf_name: str) -> tuple[TensorSpec, ...]:
    return tuple(
        _spec(prefix, layer, f"{parameter}{part}", (size,), Slicing.REPLICATED, init, f"{hf_name}.{part}")
        for part, init in (("weight", Init.ONES), ("bias", Init.ZEROS))
    )


def _spec(
    prefix: str,
    layer: int,
    parameter: str,
    shape: tuple[int, ...],
    slicing: Slicing,
    init: Init,
    hf_name: str,
    hf_transposed: bool = False,
) -> TensorSpec:
    return TensorSpec(f"{prefix}.{parameter}", layer, parameter, shape, slicing, init, hf_name, hf_transposed)
