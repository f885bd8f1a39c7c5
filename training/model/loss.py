"""Cross-entropy over a vocabulary that is sliced across ranks."""

from typing import Any

import torch
import torch.distributed as dist

from training.model.config import ModelConfig
from training.parallel.collectives import TensorSlice


class _SlicedCrossEntropy(torch.autograd.Function):
    """Per-token loss without gathering the logits (Shoeybi et al. 2019, section 3).

    Three numbers a token cross the group (maximum, sum of exponentials, target's logit), not the vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, tensor_slice: TensorSlice
    ) -> torch.Tensor:
        first = tensor_slice.rank * logits.shape[-1]
        # A copy, since exponentials replace it; in fp32, since bf16 has 8 bits.
        scores = logits.to(torch.float32, copy=True)
        scores[..., max(0, vocab_size - first) :] = -torch.inf
        peak = tensor_slice.all_reduce(scores.amax(-1), dist.ReduceOp.MAX)
        scores.sub_(peak.unsqueeze(-1))
        local = targets - first
        elsewhere = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(elsewhere, 0).unsqueeze(-1)
        target_scores = scores.gather(-1, local).squeeze(-1).masked_fill(elsewhere, 0.0)
        tensor_slice.all_reduce(target_scores)
        total = tensor_slice.all_reduce(scores.exp_().sum(-1))
        ctx.save_for_backward(scores.div_(total.unsqueeze(-1)), local, elsewhere)
        ctx.dtype = logits.dtype
        return total.log() - target_scores

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        probabilities, local, elsewhere = ctx.saved_tensors
        here = (~elsewhere).to(probabilities.dtype).unsqueeze(-1)
        probabilities.scatter_add_(-1, local, -here)
        return probabilities.mul_(gradients[0].unsqueeze(-1)).to(ctx.dtype), None, None, None


def sliced_cross_entropy(
    slice_logits: torch.Tensor, targets: torch.Tensor, model: ModelConfig, tensor_slice: TensorSlice
) -> torch.Tensor:
    """Mean loss, in nats a token, the same on every rank of the group.

    `slice_logits` is [sequence, batch, padded vocabulary / slices], `targets` token ids [batch, sequence].
    Columns that pad the vocabulary take no part, so that the loss does not depend on the layout.
    """
    losses = _SlicedCrossEntropy.apply(slice_logits, targets.t(), model.vocab_size, tensor_slice)  # type: ignore[no-untyped-call]
    return losses.mean()  # type: ignore[no-any-return]
