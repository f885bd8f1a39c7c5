"""The GPT against Hugging Face's GPT2LMHeadModel on the same weights."""

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from training.model.config import ModelConfig
from training.model.gpt import GPT
from training.model.tensors import tensor_table

MODEL = ModelConfig(num_layers=3, hidden_size=48, num_attention_heads=4, sequence_length=32, vocab_size=301)


@pytest.fixture(scope="module")
def reference() -> GPT2LMHeadModel:
    """A GPT-2 with large random weights, so that every part of it shows in the logits."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=301, n_positions=32, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module")
def ours(reference: GPT2LMHeadModel) -> GPT:
    model = GPT(MODEL)
    weights = reference.state_dict()
    with torch.no_grad():
        for spec in tensor_table(MODEL):
            value = weights[f"transformer.{spec.hf_name}"]
            model.table_parameters()[spec.name][: spec.shape[0]] = value.t() if spec.hf_transposed else value
    return model


def test_logits_equal_hugging_face_s(ours: GPT, reference: GPT2LMHeadModel) -> None:
    tokens = torch.randint(0, 301, (4, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        difference = (ours(tokens) - reference(tokens).logits).abs().max().item()
    assert difference < 1e-4


def test_loss_and_gradients_equal_pytorch_s(ours: GPT, reference: GPT2LMHeadModel) -> None:
    tokens, targets = torch.randint(0, 301, (2, 4, 32), generator=torch.Generator().manual_seed(2))
    loss = ours.loss(tokens, targets)
    expected = F.cross_entropy(reference(tokens).logits.flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    ours.zero_grad()
    reference.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    expected.backward()
    theirs = {name: parameter.grad for name, parameter in reference.transformer.named_parameters()}
    for spec in tensor_table(MODEL):
        gradient = ours.table_parameters()[spec.name].grad[: spec.shape[0]]
        wanted = theirs[spec.hf_name].t() if spec.hf_transposed else theirs[spec.hf_name]
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4, msg=spec.name)


def test_rows_that_pad_the_vocabulary_get_no_gradient(ours: GPT) -> None:
    ours.zero_grad()
    ours.loss(*torch.randint(0, 301, (2, 2, 16))).backward()  # type: ignore[no-untyped-call]
    gradient = ours.embedding.weight.grad
    assert gradient is not None
    assert gradient[:301].abs().max() > 0
    assert torch.all(gradient[301:] == 0)


def test_greedy_tokens_equal_hugging_face_s(ours: GPT, reference: GPT2LMHeadModel) -> None:
    prompt = [5, 17, 200]
    expected = reference.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 3), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    assert ours.generate(prompt, 20) == expected[0, 3:].tolist()
