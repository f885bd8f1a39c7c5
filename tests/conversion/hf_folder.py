"""A GPT-2 as transformers saves it, and what a folder of such a model holds and computes."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.conversion.training_checkpoint import make_gpt2, write_byte_tokenizer
from training.model.config import ModelConfig

# 12 heads go into 3 slices, the vocabulary into no equal ones.
MODEL = ModelConfig(num_layers=2, hidden_size=96, num_attention_heads=12, sequence_length=32, vocab_size=300)
TOKENS = torch.randint(0, 300, (2, 32), generator=torch.Generator().manual_seed(1))


def save_gpt2(folder: Path, **options: Any) -> Any:
    """Save a random model with transformers' `save_pretrained`, and a tokenizer; returns the model."""
    gpt2 = make_gpt2(MODEL)
    gpt2.save_pretrained(folder, **options)
    write_byte_tokenizer(folder)
    return gpt2


def logits(folder: Path) -> torch.Tensor:
    """What transformers computes from the folder for a fixed input, [2, 32, 300]."""
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return torch.Tensor(AutoModelForCausalLM.from_pretrained(folder).eval()(TOKENS).logits)


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's safetensors files."""
    return {key: held for path in sorted(folder.glob("*.safetensors")) for key, held in load_file(path).items()}


def assert_same_model(folder: Path, gpt2: Any) -> None:
    """The folder's files hold exactly the model's tensors, the tied one once, and compute its logits."""
    expected = {name: held for name, held in gpt2.state_dict().items() if name != "lm_head.weight"}
    found = saved_weights(folder)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with torch.no_grad():
        assert torch.equal(logits(folder), gpt2(TOKENS).logits)
