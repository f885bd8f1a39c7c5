"""The fused head and loss against logits and PyTorch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F

from training.model import loss as fused
from training.model.config import ModelConfig
from training.parallel.collectives import TensorSlice

SEQUENCE, BATCH, HIDDEN, VOCABULARY = 24, 3, 16, 301
MODEL = ModelConfig(
    num_layers=1, hidden_size=HIDDEN, num_attention_heads=1, sequence_length=SEQUENCE, vocab_size=VOCABULARY
)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=generator)
    weight = torch.randn(MODEL.padded_vocab_size(1), HIDDEN, generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


def expected(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss and both gradients in fp64."""
    exact = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    loss = F.cross_entropy((exact[0] @ exact[1].t())[..., :VOCABULARY].flatten(0, 1), targets.t().flatten())
    return loss.detach(), *torch.autograd.grad(loss, exact)


@pytest.fixture(params=["one chunk", "several"])
def blocking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "several":
        # 17 tokens a chunk, of which the last is smaller, and softmax two rows at a time.
        columns = MODEL.padded_vocab_size(1)
        monkeypatch.setitem(fused._BLOCKING, "cpu", fused._Blocking(17 * columns, 2 * columns))


@pytest.mark.usefixtures("blocking")
def test_loss_and_gradients_equal_pytorch_s() -> None:
    hidden, weight, targets = inputs()
    loss = fused.head_loss(hidden, weight, targets, MODEL, TensorSlice())
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    wanted, to_hidden, to_weight = expected(hidden, weight, targets)
    torch.testing.assert_close(loss, wanted.float(), atol=1e-5, rtol=0)
    torch.testing.assert_close(hidden.grad, 3 * to_hidden.float(), atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(weight.grad, 3 * to_weight.float(), atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("blocking")
def test_bf16_loses_no_more_than_its_own_rounding() -> None:
    hidden, weight, targets = inputs(torch.bfloat16)
    loss = fused.head_loss(hidden, weight, targets, MODEL, TensorSlice())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.dtype is torch.float32
    wanted, *gradients = expected(hidden, weight, targets)
    assert loss.item() == pytest.approx(wanted.item(), rel=2e-3)
    for found, exact in zip((hidden.grad, weight.grad), gradients, strict=True):
        assert found is not None
        assert found.dtype is torch.bfloat16
        assert (found.double() - exact).norm() < 1e-2 * exact.norm()


def test_tokens_that_are_nearly_certain_keep_their_small_gradient() -> None:
    # One minus the target's probability is below what bf16 can tell from 1.
    weight = torch.zeros(MODEL.padded_vocab_size(1), HIDDEN, dtype=torch.bfloat16)
    weight[7, 0] = 14.0
    hidden = torch.zeros(SEQUENCE, BATCH, HIDDEN, dtype=torch.bfloat16)
    hidden[..., 0] = 1.0
    targets = torch.full((BATCH, SEQUENCE), 7)
    hidden.requires_grad_()
    fused.head_loss(hidden, weight.requires_grad_(), targets, MODEL, TensorSlice()).backward()  # type: ignore[no-untyped-call]
    _, to_hidden, to_weight = expected(hidden, weight, targets)
    torch.testing.assert_close(hidden.grad, to_hidden.bfloat16(), atol=0, rtol=2e-2)
    torch.testing.assert_close(weight.grad[7], to_weight[7].bfloat16(), atol=0, rtol=2e-2)  # type: ignore[index]


def test_evaluation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = inputs()
    trained = fused.head_loss(hidden, weight, targets, MODEL, TensorSlice())

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(torch.Tensor, "addmm_", refuse)
    with torch.no_grad():
        evaluated = fused.head_loss(hidden, weight, targets, MODEL, TensorSlice())
    assert not evaluated.requires_grad
    assert evaluated.item() == trained.item()


def test_the_vocabulary_s_padding_takes_no_part() -> None:
    hidden, weight, targets = inputs()
    with torch.no_grad():
        before = fused.head_loss(hidden, weight, targets, MODEL, TensorSlice())
        weight[VOCABULARY:] = 100.0
        assert fused.head_loss(hidden, weight, targets, MODEL, TensorSlice()).item() == before.item()
