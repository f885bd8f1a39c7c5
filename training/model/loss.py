"""The tied head and its cross-entropy in one, over a vocabulary that is sliced across ranks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from training.model.config import ModelConfig
from training.parallel.collectives import TensorSlice, copy_to_slices


class _Blocking(NamedTuple):
    """How many logits, of one rank's slice, exist at once."""

    matmul: int  # in the weights' dtype, between the matmuls: large, since each adds to the whole weight gradient
    softmax: int  # in fp32: on a CPU what fits its caches


_BLOCKING = {"cpu": _Blocking(1 << 25, 1 << 20)}
_BLOCKING_ELSEWHERE = _Blocking(1 << 28, 1 << 26)


class _HeadLoss(torch.autograd.Function):
    """Mean loss without the logits of all tokens, and without gathering any (Shoeybi et al. 2019, section 3).

    The gradients are computed with the loss, while a chunk's logits are at hand, and only scaled in backward.
    Three numbers a token cross the group (maximum; sum of exponentials and target's logit), not the vocabulary.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        vocab_size: int,
        tensor_slice: TensorSlice,
        with_gradients: bool,
    ) -> torch.Tensor:
        tokens = len(hidden)
        loss = torch.zeros((), device=hidden.device)
        to_hidden = torch.empty_like(hidden) if with_gradients else None
        to_weight = torch.empty_like(weight) if with_gradients else None
        for rows in _chunks(tokens, weight):
            logits = hidden[rows] @ weight.t()
            losses, totals = _losses_and_exponentials(logits, targets[rows], vocab_size, tensor_slice)
            loss += losses.sum()
            if to_hidden is not None and to_weight is not None:
                # The rows still lack their division by the totals: done on [tokens, hidden], not [tokens, vocabulary].
                scale = totals.mul_(tokens).reciprocal_().unsqueeze(-1)
                torch.mul(logits @ weight, scale, out=to_hidden[rows])
                scaled = torch.mul(hidden[rows], scale).to(weight.dtype)
                to_weight.addmm_(logits.t(), scaled, beta=float(rows.start > 0))
        ctx.save_for_backward(to_hidden, to_weight)
        return loss.div_(tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden.mul_(gradients[0]), to_weight.mul_(gradients[0]), None, None, None, None


def head_loss(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, model: ModelConfig, tensor_slice: TensorSlice
) -> torch.Tensor:
    """Mean loss of a sliced head, in nats a token, fp32, the same on every rank of the group.

    `hidden` is [sequence, batch, hidden], or this rank's rows of it with sequence parallelism; `weight` this rank's
    rows of the head, [padded vocabulary / slices, hidden]; `targets` token ids [batch, sequence]. Rows that pad the
    vocabulary take no part, so that the loss does not depend on the layout. Backward can be called once.
    """
    inputs = copy_to_slices(hidden, tensor_slice).flatten(0, 1)
    with_gradients = torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad)
    return _HeadLoss.apply(  # type: ignore[no-any-return, no-untyped-call]
        inputs, weight, targets.t().flatten(), model.vocab_size, tensor_slice, with_gradients
    )


def _chunks(tokens: int, weight: torch.Tensor) -> Iterator[slice]:
    """The tokens in portions of nearly equal size, as few as the blocking allows."""
    blocking = _BLOCKING.get(weight.device.type, _BLOCKING_ELSEWHERE)
    portions = -(-tokens * weight.shape[0] // blocking.matmul)
    size = -(-tokens // portions)
    return (slice(first, min(first + size, tokens)) for first in range(0, tokens, size))


def _losses_and_exponentials(
    logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, tensor_slice: TensorSlice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [tokens] of `logits` [tokens, vocabulary slice], and what the gradient must be divided by, fp32.

    The logits become their gradient, times those totals: exponentials, less the total at the target.
    """
    first = tensor_slice.rank * logits.shape[1]
    logits[:, max(0, vocab_size - first) :] = -torch.inf
    peaks = tensor_slice.all_reduce(logits.amax(1).float(), dist.ReduceOp.MAX)
    local = targets - first
    elsewhere = (local < 0) | (local >= logits.shape[1])
    # Indexing, since scatter on a CPU copies all of the logits.
    at_targets = torch.arange(len(targets), device=targets.device), local.masked_fill(elsewhere, 0)
    scores = logits[at_targets].float() - peaks
    totals = _exponentiate(logits, peaks)
    shared = tensor_slice.all_reduce(torch.stack((totals, scores.masked_fill(elsewhere, 0.0))))
    totals, target_scores = shared
    # From the target's fp32 exponential: near 1 a bf16 one would leave nothing of the difference.
    differences = (scores.exp() - totals).to(logits.dtype)
    logits[at_targets] = torch.where(elsewhere, logits[at_targets], differences)
    return totals.log() - target_scores, totals


def _exponentiate(logits: torch.Tensor, peaks: torch.Tensor) -> torch.Tensor:
    """Replace logits [tokens, vocabulary slice] by exp(logit - peak), computed in fp32; their sums, fp32."""
    blocking = _BLOCKING.get(logits.device.type, _BLOCKING_ELSEWHERE)
    rows = max(1, blocking.softmax // logits.shape[1])
    totals = []
    for piece, piece_peaks in zip(torch.split(logits, rows), torch.split(peaks, rows), strict=True):
        exponentials = piece.to(torch.float32, copy=True).sub_(piece_peaks.unsqueeze(1)).exp_()
        totals.append(exponentials.sum(1))
        piece.copy_(exponentials)
    return torch.cat(totals)
