"""The whole GPT in one process: for tests, for generation, and as the pipeline's reference."""

import torch
from torch import nn

from training.model.config import ModelConfig, Recomputation
from training.model.layers import (
    FinalNorm,
    LayerContext,
    PositionEmbedding,
    TableLayer,
    TransformerBlock,
    WordEmbedding,
    whole_logits,
)
from training.model.loss import head_loss
from training.model.tensors import LayerKind, layer_kinds, tensor_table
from training.parallel.collectives import TensorSlice

LAYER_CLASSES: dict[LayerKind, type[TableLayer]] = {
    LayerKind.WORD_EMBEDDING: WordEmbedding,
    LayerKind.POSITION_EMBEDDING: PositionEmbedding,
    LayerKind.BLOCK: TransformerBlock,
    LayerKind.FINAL_NORM: FinalNorm,
}


class GPT(nn.Module):
    """Every pipeline layer in order, tensor-sliced or not."""

    def __init__(
        self,
        model: ModelConfig,
        seed: int = 1234,
        tensor_slice: TensorSlice | None = None,
        recomputation: Recomputation = "none",
    ) -> None:
        super().__init__()
        self.config = model
        self.tensor_slice = tensor_slice or TensorSlice()
        context = LayerContext(model, seed, self.tensor_slice, recomputation)
        self.clock = context.clock
        self.embedding = WordEmbedding(context, 0)
        owners = [(number, kind) for number, kind in enumerate(layer_kinds(model)) if kind in LAYER_CLASSES]
        self.layers = nn.ModuleList(
            self.embedding if number == 0 else LAYER_CLASSES[kind](context, number) for number, kind in owners
        )

    def slice_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's logits, [sequence, batch, padded vocabulary / slices], for ids [batch, sequence]."""
        return self.embedding.logits(self._hidden(tokens))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, sequence, vocabulary] for token ids [batch, sequence]."""
        return whole_logits(self.slice_logits(tokens), self.config, self.tensor_slice)

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor, first_sample: int = 0) -> torch.Tensor:
        """Mean loss in nats a token; both arguments are ids [batch, sequence].

        `first_sample` is the first one's number in the run, which dropout, in training mode, depends on.
        """
        self.clock.first_sample = first_sample
        return head_loss(self._hidden(tokens), self.embedding.weight, targets, self.config, self.tensor_slice)

    @torch.no_grad()
    def generate(self, prompt: list[int], max_new_tokens: int) -> list[int]:
        """Greedy continuation of one prompt's token ids; without a cache, for checks rather than speed."""
        tokens = list(prompt)
        for _ in range(max_new_tokens):
            window = torch.tensor([tokens[-self.config.sequence_length :]])
            tokens.append(int(self(window)[0, -1].argmax()))
        return tokens[len(prompt) :]

    def table_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's slices by the names of the table of tensors."""
        return {spec.name: self.layers[spec.layer].get_parameter(spec.parameter) for spec in tensor_table(self.config)}

    def _hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = tokens
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden
