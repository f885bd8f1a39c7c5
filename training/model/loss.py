"""The tied head and its cross-entropy in one, over a vocabulary that is sliced across ranks."""

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
        chunks = _chunks(tokens, weight)
        # One for all chunks: while a second is computed the first is still there.
        buffer = weight.new_empty(chunks[0].stop, weight.shape[0])
        for rows in chunks:
            logits = torch.mm(hidden[rows], weight.t(), out=buffer[: rows.stop - rows.start])
            losses, factors = _losses_and_gradients(logits, targets[rows], vocab_size, tensor_slice)
            loss += losses.sum()
            if to_hidden is not None and to_weight is not None:
                # The factors of the rows are applied to [tokens, hidden], not to [tokens, vocabulary].
                scale = factors.div_(tokens).unsqueeze(-1)
                torch.mul(logits @ weight, scale, out=to_hidden[rows])
                scaled = torch.mul(hidden[rows], scale).to(weight.dtype)
                to_weight.addmm_(logits.t(), scaled, beta=float(rows.start > 0))
        # Not saved tensors: autograd holds those until backward ends, and then could not add to them in place.
        ctx.gradients = to_hidden, to_weight
        return loss.div_(tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (to_hidden, to_weight), ctx.gradients = ctx.gradients, None
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


def _chunks(tokens: int, weight: torch.Tensor) -> list[slice]:
    """The tokens in portions of nearly equal size, as few as the blocking allows."""
    blocking = _BLOCKING.get(weight.device.type, _BLOCKING_ELSEWHERE)
    portions = -(-tokens * weight.shape[0] // blocking.matmul)
    size = -(-tokens // portions)
    return [slice(first, min(first + size, tokens)) for first in range(0, tokens, size)]


def _losses_and_gradients(
    logits: torch.Tensor, targets: torch.Tensor, vocab_size: int, tensor_slice: TensorSlice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [tokens] of `logits` [tokens, vocabulary slice], and factors [tokens], both fp32.

    The logits become their gradient but for those factors: the slice's own softmax, less the target.
    """
    first = tensor_slice.rank * logits.shape[1]
    # Finite, since a slice may be nothing but padding.
    logits[:, max(0, vocab_size - first) :] = torch.finfo(logits.dtype).min
    local = targets - first
    elsewhere = (local < 0) | (local >= logits.shape[1])
    # Indexing, since scatter on a CPU copies all of the logits.
    at_targets = torch.arange(len(targets), device=targets.device), local.masked_fill(elsewhere, 0)
    scores = logits[at_targets].float().masked_fill_(elsewhere, 0.0)
    slice_sums, target_probabilities = _softmax(logits, at_targets[1])
    peaks = tensor_slice.all_reduce(slice_sums.clone(), dist.ReduceOp.MAX)
    shares, target_scores = tensor_slice.all_reduce(torch.stack(((slice_sums - peaks).exp_(), scores)))
    sums = peaks + shares.log()
    # Of the slice in the whole softmax. A share of exp(-80) gives no gradient either, and has an inverse.
    factors = (slice_sums - sums).clamp_(min=-80.0).exp_()
    # In fp32: near 1 a bf16 probability would leave nothing of the difference.
    differences = (target_probabilities - factors.reciprocal()).to(logits.dtype)
    logits[at_targets] = torch.where(elsewhere, logits[at_targets], differences)
    return sums - target_scores, factors


def _softmax(logits: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace logits [tokens, vocabulary slice] by their softmax, computed in fp32.

    Returns the logarithms of the sums of exponentials, and the probabilities at `columns`, both [tokens] and fp32.
    """
    blocking = _BLOCKING.get(logits.device.type, _BLOCKING_ELSEWHERE)
    rows = min(len(logits), max(1, blocking.softmax // logits.shape[1]))
    # Allocated once: a CPU's allocator does not reuse well what lies between small tensors that stay.
    exact, probabilities = torch.empty(2, rows, logits.shape[1], device=logits.device)
    sums, chosen = torch.empty(2, len(logits), device=logits.device)
    for first in range(0, len(logits), rows):
        span = slice(first, min(first + rows, len(logits)))
        piece, count = logits[span], span.stop - first
        torch.softmax(exact[:count].copy_(piece), 1, out=probabilities[:count])
        # At the largest, whose probability is never too small for a logarithm.
        torch.sub(exact[:count].amax(1), probabilities[:count].amax(1).log_(), out=sums[span])
        chosen[span] = probabilities[:count].gather(1, columns[span].unsqueeze(1)).squeeze(1)
        piece.copy_(probabilities[:count])
    return sums, chosen
