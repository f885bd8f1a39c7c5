"""Recomputation changes what is kept, not one bit of what is computed."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from training.model.config import ModelConfig, Recomputation
from training.model.gpt import GPT

MODEL = ModelConfig(
    num_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    sequence_length=64,
    vocab_size=100,
)
DROPOUT = MODEL.model_copy(update={"attention_dropout": 0.1, "hidden_dropout": 0.1})


def tokens() -> torch.Tensor:
    return torch.randint(0, 100, (2, 2, 64), generator=torch.Generator().manual_seed(5))


def gradients(model: ModelConfig, recomputation: Recomputation, dtype: torch.dtype) -> list[torch.Tensor]:
    """The loss, then each gradient, after the clock went on as a pipeline's does before backward."""
    gpt = GPT(model, recomputation=recomputation).to(dtype)
    loss = gpt.loss(*tokens(), first_sample=6)
    gpt.clock.first_sample = 99
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *[parameter.grad for parameter in gpt.parameters() if parameter.grad is not None]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", [MODEL, DROPOUT], ids=["plain", "dropout"])
@pytest.mark.parametrize("recomputation", ["selective", "full"])
def test_recomputation_is_bit_identical(model: ModelConfig, recomputation: Recomputation, dtype: torch.dtype) -> None:
    expected = gradients(model, "none", dtype)
    actual = gradients(model, recomputation, dtype)
    assert len(actual) == len(expected) > 1
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(actual, expected, strict=True))


@pytest.fixture
def kept_bytes() -> Callable[[Recomputation], int]:
    """Bytes that a forward pass keeps for backward, each storage once, parameters apart."""

    def measure(recomputation: Recomputation) -> int:
        gpt = GPT(DROPOUT, recomputation=recomputation)
        parameters = {parameter.untyped_storage().data_ptr() for parameter in gpt.parameters()}
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                kept[storage.data_ptr()] = storage
            return tensor

        # Non-reentrant checkpoints push their own hooks inside these, so what they will recompute is not seen here.
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            gpt.loss(*tokens())
        return sum(storage.nbytes() for storage in kept.values())

    return measure


def test_recomputation_keeps_less(kept_bytes: Callable[[Recomputation], int]) -> None:
    none, selective, full = (kept_bytes(recomputation) for recomputation in ("none", "selective", "full"))
    assert full < selective < none
