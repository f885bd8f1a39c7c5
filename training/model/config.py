"""The shape of a GPT."""

import math
from typing import Literal

from pydantic import Field, model_validator

from foundation.config import StrictModel

Recomputation = Literal["none", "selective", "full"]


def _is_zero(rate: float) -> bool:
    return rate == 0.0


class ModelConfig(StrictModel):
    """A left-to-right transformer decoder, as MT-NLG 530B's (Smith et al. 2022, section 2).

    Pre-LayerNorm, GELU (tanh form, as GPT-2), learned positions, tied input and output embeddings.
    """

    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    sequence_length: int = Field(ge=1, description="longest context, in tokens; the number of learned positions")
    vocab_size: int = Field(default=50257, ge=1, description="tokens that the tokenizer knows, before padding")
    vocab_size_multiple: int = Field(
        default=128, ge=1, description="the vocabulary is padded to a multiple of this times the tensor slices"
    )
    layernorm_epsilon: float = Field(default=1e-5, gt=0)
    # A model without dropout is written without these keys, as before they existed.
    attention_dropout: float = Field(
        default=0.0, ge=0, lt=1, exclude_if=_is_zero, description="share of attention probabilities dropped in training"
    )
    hidden_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        exclude_if=_is_zero,
        description="the same of the embedding and of each block's outputs",
    )

    @model_validator(mode="after")
    def _heads_divide(self) -> "ModelConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def ffn_hidden_size(self) -> int:
        """Width of the feed-forward layer, 4 h."""
        return 4 * self.hidden_size

    @property
    def init_std(self) -> float:
        """Standard deviation of the initialisation, sqrt(1 / (3 h)) (Smith et al. 2022, section 3.1)."""
        return math.sqrt(1.0 / (3.0 * self.hidden_size))

    def padded_vocab_size(self, tensor_parallel_size: int) -> int:
        """Vocabulary rows stored at a tensor-parallel size, so that every slice is equal and aligned.

        50257 tokens at 8 slices give 51200, MT-NLG's figure.
        """
        multiple = self.vocab_size_multiple * tensor_parallel_size
        return -(-self.vocab_size // multiple) * multiple
