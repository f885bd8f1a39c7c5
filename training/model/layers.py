"""The GPT's layers. They know tensor slicing, not DeepSpeed: a pipeline engine or a plain loop drives them.

Activations are [sequence, batch, hidden], Megatron's order. Each layer takes its specs from the
table of tensors and its part of the group as a `TensorSlice`.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from training.model.config import ModelConfig
from training.model.initialise import initial_slice
from training.model.tensors import Slicing, layer_tensors
from training.parallel.collectives import TensorSlice, copy_to_slices, gather_slices, sum_over_slices


@dataclass(frozen=True)
class LayerContext:
    """What every layer is built from."""

    model: ModelConfig
    seed: int
    tensor_slice: TensorSlice = field(default_factory=TensorSlice)

    def parameters(self, layer: int) -> dict[str, nn.Parameter]:
        """This rank's slices of the tensors that pipeline layer `layer` owns, by parameter name."""
        return {
            spec.parameter: _mark(
                nn.Parameter(
                    initial_slice(spec, self.model, self.seed, self.tensor_slice.rank, self.tensor_slice.size)
                ),
                sliced=spec.slicing is not Slicing.REPLICATED,
            )
            for spec in layer_tensors(self.model, layer)
        }


class Affine(Protocol):
    """The two tensors of a linear map or of a LayerNorm."""

    weight: nn.Parameter
    bias: nn.Parameter


class AttentionTensors(Protocol):
    """The linear maps of self-attention."""

    query_key_value: Affine
    dense: Affine


class FeedForwardTensors(Protocol):
    """The linear maps of the feed-forward layer."""

    dense_h_to_4h: Affine
    dense_4h_to_h: Affine


class TableLayer(nn.Module):
    """A layer whose parameters are those of the table, under the table's names."""

    def __init__(self, context: LayerContext, layer: int) -> None:
        super().__init__()
        self.config = context.model
        self.tensor_slice = context.tensor_slice
        for name, parameter in context.parameters(layer).items():
            _register(self, name, parameter)


class WordEmbedding(TableLayer):
    """Token embedding sliced along the vocabulary; the same tensor is the output head."""

    weight: nn.Parameter

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed token ids [batch, sequence] as [sequence, batch, hidden]."""
        first = self.tensor_slice.rank * self.weight.shape[0]
        local = tokens.t() - first
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        embedded = F.embedding(local.masked_fill(elsewhere, 0), self.weight)
        if self.tensor_slice.size > 1:
            embedded = embedded.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return sum_over_slices(embedded, self.tensor_slice)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """This rank's slice of the logits, [sequence, batch, padded vocabulary / slices]."""
        return F.linear(copy_to_slices(hidden, self.tensor_slice), self.weight)


class PositionEmbedding(TableLayer):
    """Learned absolute positions, added to the embedded tokens."""

    weight: nn.Parameter

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add positions to [sequence, batch, hidden]."""
        return hidden + self.weight[: hidden.shape[0]].unsqueeze(1)


class TransformerBlock(TableLayer):
    """Pre-LayerNorm self-attention and feed-forward, each with its residual."""

    input_layernorm: Affine
    post_attention_layernorm: Affine
    attention: AttentionTensors
    mlp: FeedForwardTensors

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [sequence, batch, hidden] to the same shape."""
        hidden = hidden + self._attention(self._norm(hidden, self.input_layernorm))
        return hidden + self._feed_forward(self._norm(hidden, self.post_attention_layernorm))

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        length, batch, _ = hidden.shape
        mixed = _linear(copy_to_slices(hidden, self.tensor_slice), self.attention.query_key_value)
        # [s, b, 3 h / t] as [q_r; k_r; v_r], each to [b, heads / t, s, head size].
        query, key, value = (
            part.view(length, batch, -1, self.config.head_size).permute(1, 2, 0, 3) for part in mixed.chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._row_linear(attended.permute(2, 0, 1, 3).reshape(length, batch, -1), self.attention.dense)

    def _feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = _linear(copy_to_slices(hidden, self.tensor_slice), self.mlp.dense_h_to_4h)
        return self._row_linear(F.gelu(inner, approximate="tanh"), self.mlp.dense_4h_to_h)

    def _row_linear(self, inputs: torch.Tensor, linear: Affine) -> torch.Tensor:
        # The bias is added once, after the slices' partial sums.
        return sum_over_slices(F.linear(inputs, linear.weight), self.tensor_slice) + linear.bias

    def _norm(self, hidden: torch.Tensor, norm: Affine) -> torch.Tensor:
        return _layer_norm(hidden, norm, self.config)


class FinalNorm(TableLayer):
    """The LayerNorm before the head."""

    weight: nn.Parameter
    bias: nn.Parameter

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Normalise [sequence, batch, hidden]."""
        return _layer_norm(hidden, self, self.config)


def whole_logits(slice_logits: torch.Tensor, model: ModelConfig, tensor_slice: TensorSlice) -> torch.Tensor:
    """Logits [batch, sequence, vocabulary] from every rank's [sequence, batch, slice]; padding cut off."""
    return gather_slices(slice_logits, tensor_slice)[..., : model.vocab_size].transpose(0, 1)


def _linear(inputs: torch.Tensor, linear: Affine) -> torch.Tensor:
    return F.linear(inputs, linear.weight, linear.bias)


def _layer_norm(hidden: torch.Tensor, norm: Affine, model: ModelConfig) -> torch.Tensor:
    return F.layer_norm(
        hidden,
        (model.hidden_size,),
        norm.weight,
        norm.bias,
        model.layernorm_epsilon,
    )


def _register(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    *path, leaf = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = getattr(module, part)
    module.register_parameter(leaf, parameter)


def _mark(parameter: nn.Parameter, *, sliced: bool) -> nn.Parameter:
    # Gradient clipping sums the squares of sliced parameters over the group, of whole ones once.
    parameter.tensor_model_parallel = sliced  # type: ignore[attr-defined]
    return parameter
