"""The GPT's layers. They know tensor slicing, not DeepSpeed: a pipeline engine or a plain loop drives them.

Activations are [sequence, batch, hidden], Megatron's order; with sequence parallelism those between sliced
regions, and so between layers, hold this rank's part of the sequence. Each layer takes its specs from the
table of tensors and its part of the group as a `TensorSlice`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from training.model.attention import causal_attention
from training.model.config import ModelConfig, Recomputation
from training.model.dropout import Dropout, SampleClock
from training.model.initialise import initial_slice
from training.model.tensors import Slicing, layer_tensors
from training.parallel.collectives import TensorSlice, column_linear, gather_slices, sum_over_slices


@dataclass(frozen=True)
class LayerContext:
    """What every layer is built from. The clock is shared: dropout asks it which samples it falls on."""

    model: ModelConfig
    seed: int
    tensor_slice: TensorSlice = field(default_factory=TensorSlice)
    recomputation: Recomputation = "none"
    clock: SampleClock = field(default_factory=SampleClock)

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
        self.clock = context.clock
        for name, parameter in context.parameters(layer).items():
            _register(self, name, parameter)

    def _drop_hidden(self, hidden: torch.Tensor, dropout: Dropout, first_sample: int) -> torch.Tensor:
        """Dropout of activations between sliced regions; the numbers of its rows are positions."""
        if not self.training or dropout.rate == 0.0:
            return hidden
        rows, batch, _ = hidden.shape
        positions = self.tensor_slice.positions(rows)
        return dropout(
            hidden,
            torch.arange(first_sample, first_sample + batch, device=hidden.device),
            torch.arange(positions.start, positions.stop, device=hidden.device).unsqueeze(1),
        )


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
        return column_linear(hidden, self.weight, None, self.tensor_slice)


class PositionEmbedding(TableLayer):
    """Learned absolute positions, added to the embedded tokens."""

    weight: nn.Parameter

    def __init__(self, context: LayerContext, layer: int) -> None:
        super().__init__(context, layer)
        self._dropout = Dropout.at(context.model.hidden_dropout, context.seed, layer, "embedding")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Add positions to [sequence, batch, hidden]."""
        positions = self.tensor_slice.positions(hidden.shape[0])
        hidden = hidden + self.weight[positions.start : positions.stop].unsqueeze(1)
        return self._drop_hidden(hidden, self._dropout, self.clock.first_sample)


class TransformerBlock(TableLayer):
    """Pre-LayerNorm self-attention and feed-forward, each with its residual.

    With `recomputation` "full" backward computes the whole block again from its input, with "selective" only
    scores, softmax, dropout and their product with the values (Korthikanti et al. 2022, section 5).
    """

    input_layernorm: Affine
    post_attention_layernorm: Affine
    attention: AttentionTensors
    mlp: FeedForwardTensors

    def __init__(self, context: LayerContext, layer: int) -> None:
        super().__init__(context, layer)
        model, seed = context.model, context.seed
        self._recomputation = context.recomputation
        self._probability_dropout = Dropout.at(model.attention_dropout, seed, layer, "attention probabilities")
        self._attention_dropout = Dropout.at(model.hidden_dropout, seed, layer, "attention")
        self._feed_forward_dropout = Dropout.at(model.hidden_dropout, seed, layer, "feed-forward")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [sequence, batch, hidden] to the same shape."""
        # Read once: when backward computes again, the clock shows a later micro-batch.
        first_sample = self.clock.first_sample
        if self._recomputation == "full":
            return _recomputed(self._block, hidden, first_sample)
        return self._block(hidden, first_sample)

    def _block(self, hidden: torch.Tensor, first_sample: int) -> torch.Tensor:
        attended = self._attention(self._norm(hidden, self.input_layernorm), first_sample)
        hidden = hidden + self._drop_hidden(attended, self._attention_dropout, first_sample)
        mapped = self._feed_forward(self._norm(hidden, self.post_attention_layernorm))
        return hidden + self._drop_hidden(mapped, self._feed_forward_dropout, first_sample)

    def _attention(self, hidden: torch.Tensor, first_sample: int) -> torch.Tensor:
        mixed = self._column_linear(hidden, self.attention.query_key_value)
        length, batch, _ = mixed.shape
        # [s, b, 3 h / t] as [q_r; k_r; v_r], each to [b, heads / t, s, head size].
        query, key, value = (
            part.view(length, batch, -1, self.config.head_size).permute(1, 2, 0, 3) for part in mixed.chunk(3, dim=-1)
        )
        if self._recomputation == "selective":
            attended = _recomputed(self._core_attention, query, key, value, first_sample)
        else:
            attended = self._core_attention(query, key, value, first_sample)
        return self._row_linear(attended.permute(2, 0, 1, 3).reshape(length, batch, -1), self.attention.dense)

    def _core_attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, first_sample: int
    ) -> torch.Tensor:
        """Causal attention of this rank's heads; all arguments and the result [b, heads / t, s, head size]."""
        dropout = self._probability_dropout
        if not self.training or dropout.rate == 0.0:
            return causal_attention(query, key, value)
        # The fused kernels draw from torch's generator, so the probabilities have to be seen.
        batch, heads, length, head_size = query.shape
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = (query * head_size**-0.5) @ key.transpose(-2, -1)
        probabilities = scores.masked_fill(future, -torch.inf).softmax(-1, dtype=torch.float32).to(query.dtype)
        samples = torch.arange(first_sample, first_sample + batch, device=query.device).view(-1, 1, 1)
        head_numbers = self.tensor_slice.rank * heads + torch.arange(heads, device=query.device)
        rows = head_numbers.unsqueeze(1) * self.config.sequence_length + torch.arange(length, device=query.device)
        return dropout(probabilities, samples, rows) @ value

    def _feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self._column_linear(hidden, self.mlp.dense_h_to_4h)
        return self._row_linear(F.gelu(inner, approximate="tanh"), self.mlp.dense_4h_to_h)

    def _column_linear(self, inputs: torch.Tensor, linear: Affine) -> torch.Tensor:
        return column_linear(inputs, linear.weight, linear.bias, self.tensor_slice)

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


def _recomputed(function: Callable[..., torch.Tensor], *arguments: torch.Tensor | int) -> torch.Tensor:
    # No layer draws from torch's generators, so none of their states are kept.
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]


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
