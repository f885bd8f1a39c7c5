"""Blocked attention against PyTorch's own, and what it may keep."""

import pytest
import torch
import torch.nn.functional as F

from training.model import attention


def inputs(batch: int, heads: int, length: int, head_size: int) -> list[torch.Tensor]:
    """Queries, keys and values as the layer has them: views of one tensor, [b, h, s, d]."""
    generator = torch.Generator().manual_seed(length)
    fused = torch.randn(length, batch, 3, heads, head_size, generator=generator).bfloat16()
    return [fused[:, :, part].permute(1, 2, 0, 3) for part in range(3)]


def exact(parts: list[torch.Tensor], gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The result and the three gradients in fp64, without a block or a fused kernel."""
    query, key, value = (part.detach().double().requires_grad_() for part in parts)
    future = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).triu(1)
    scores = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).masked_fill(future, -torch.inf)
    attended = scores.softmax(-1) @ value
    return attended.detach(), *torch.autograd.grad(attended, (query, key, value), gradient.double())


@pytest.mark.parametrize("length", [1, 7, 16, 40])
@pytest.mark.parametrize("block_scores", [1, 1 << 22], ids=["a head at a time", "all heads"])
def test_result_and_gradients_are_attention_s(length: int, block_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_BLOCK_ROWS", 16)
    monkeypatch.setattr(attention, "_BLOCK_SCORES", block_scores)
    parts = [part.detach().requires_grad_() for part in inputs(2, 3, length, 8)]
    attended = attention.causal_attention(*parts)
    gradient = torch.randn(attended.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = attended.detach(), *torch.autograd.grad(attended, parts, gradient)
    for ours, wanted in zip(found, exact(parts, gradient), strict=True):
        assert ours.dtype is torch.bfloat16
        assert (ours.double() - wanted).norm() <= 8e-3 * wanted.norm()


def test_it_is_as_close_as_pytorch_s_fused_kernel() -> None:
    parts = inputs(1, 4, 512, 32)
    gradient = torch.ones(1, 4, 512, 32)
    wanted = exact(parts, gradient)[0]
    ours = (attention.causal_attention(*parts).double() - wanted).norm()
    theirs = (F.scaled_dot_product_attention(*parts, is_causal=True).double() - wanted).norm()
    assert ours <= 2 * theirs


def test_backward_keeps_only_the_arguments() -> None:
    kept: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    parts = [part.detach().requires_grad_() for part in inputs(2, 3, 40, 8)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention.causal_attention(*parts)
    assert kept == [torch.Size((2, 3, 40, 8))] * 3
