"""Causal attention: torch's fused kernels, or on a CPU in bf16, where those are slow, blocks of plain matmuls."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

# Rows of scores at once: enough for the matmuls to be fast, few enough to skip most of the future.
_BLOCK_ROWS = 256
# Scores at once, of as many heads as that allows: what the caches hold.
_BLOCK_SCORES = 1 << 22


def causal_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """softmax(Q K^T / sqrt(head size)) V over the past; arguments and result [batch, heads, sequence, head size]."""
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        return _blocked_attention(query, key, value)  # type: ignore[no-any-return]
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # unrolled, its loops are a third slower
def _blocked_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return _BlockedAttention.apply(query, key, value)  # type: ignore[no-any-return, no-untyped-call]


class _BlockedAttention(torch.autograd.Function):
    """Exact attention in blocks of heads and rows; backward computes the probabilities again.

    Memory beyond the arguments is one block's scores, as in FlashAttention (Dao et al. 2022), but a block sees
    all of its past, so that its softmax needs no running maximum. Scores are rounded to bf16 before the softmax,
    as in Megatron's unfused attention; the softmax itself is computed in fp32.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        # [batch * heads, sequence, head size]
        q, k, v = (part.flatten(0, 1) for part in (query, key, value))
        attended = torch.empty_like(q)
        for heads, rows, past in _blocks(*q.shape[:2]):
            attended[heads, rows] = _probabilities(q[heads, rows], k[heads, past]) @ v[heads, past]
        return attended.view(query.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = ctx.saved_tensors
        q, k, v, gradient = (part.flatten(0, 1) for part in (query, key, value, gradients[0]))
        scale = q.shape[-1] ** -0.5
        to_query = torch.empty_like(q)
        # Every block adds to its past's gradients: in fp32.
        to_key, to_value = torch.empty(2, *q.shape, device=q.device)
        for heads, rows, past in _blocks(*q.shape[:2]):
            probabilities = _probabilities(q[heads, rows], k[heads, past])
            to_scores = torch.ops.aten._softmax_backward_data(
                gradient[heads, rows] @ v[heads, past].transpose(1, 2), probabilities, -1, probabilities.dtype
            )
            to_query[heads, rows] = to_scores @ k[heads, past]
            whole = past.stop == q.shape[1]
            _add(to_key[heads, past], to_scores.transpose(1, 2) @ q[heads, rows], first=whole)
            _add(to_value[heads, past], probabilities.transpose(1, 2) @ gradient[heads, rows], first=whole)
        # One tensor for the three, [sequence, batch, 3, heads, head size]: what their projection's backward reads.
        batch, heads_, length, head_size = query.shape
        fused = query.new_empty(length, batch, 3, heads_, head_size)
        parts = [fused[:, :, part].permute(1, 2, 0, 3) for part in range(3)]
        for part, found in zip(parts, (to_query.mul_(scale), to_key.mul_(scale), to_value), strict=True):
            part.copy_(found.view(query.shape))
        return tuple(parts)


def _blocks(heads: int, length: int) -> Iterator[tuple[slice, slice, slice]]:
    """Heads, rows and their past of each block; of the same heads the last rows, which see all, come first."""
    group = max(1, _BLOCK_SCORES // (_BLOCK_ROWS * length))
    for head in range(0, heads, group):
        for row in reversed(range(0, length, _BLOCK_ROWS)):
            end = min(row + _BLOCK_ROWS, length)
            yield slice(head, min(head + group, heads)), slice(row, end), slice(0, end)


def _probabilities(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Probabilities [heads, rows, past] of the last `rows` queries of that past."""
    rows, past = query.shape[1], key.shape[1]
    bias = query.new_zeros(rows, past)
    bias[:, past - rows :] = query.new_full((rows, rows), -torch.inf).triu_(1)
    return torch.baddbmm(bias, query, key.transpose(1, 2), alpha=query.shape[-1] ** -0.5).softmax(-1)


def _add(total: torch.Tensor, term: torch.Tensor, *, first: bool) -> None:
    if first:
        total.copy_(term)
    else:
        total.add_(term)
