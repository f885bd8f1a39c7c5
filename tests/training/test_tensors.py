"""The table of tensors against published counts and Hugging Face's GPT-2."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from foundation.config import CONFIG_ROOT, load_config
from training.model.config import ModelConfig
from training.model.initialise import initial_slice
from training.model.slicing import join_slices
from training.model.tensors import Init, parameter_count, tensor_table

SMALL = ModelConfig(num_layers=3, hidden_size=48, num_attention_heads=4, sequence_length=32, vocab_size=301)


def narayanan_count(model: ModelConfig, vocab: int) -> float:
    """Narayanan et al. 2021, equation 2."""
    layers, h, s = model.num_layers, model.hidden_size, model.sequence_length
    return 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocab + s) / (12 * layers * h))


@pytest.mark.parametrize("path", sorted((CONFIG_ROOT / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_parameter_count_is_the_published_formula(path: Path) -> None:
    model = load_config(ModelConfig, path)
    expected = narayanan_count(model, model.padded_vocab_size(8)) + 2 * model.hidden_size
    assert parameter_count(model, 8) == round(expected)


def test_mt_nlg_530b_is_the_paper_s() -> None:
    model = load_config(ModelConfig, CONFIG_ROOT / "model" / "mt-nlg-530b.yaml")
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (105, 20480, 128)
    assert model.padded_vocab_size(8) == 51200
    assert f"{parameter_count(model, 8) / 1e9:.1f}" == "529.6"


def test_names_and_shapes_are_gpt2_s() -> None:
    reference = GPT2LMHeadModel(
        GPT2Config(vocab_size=301, n_positions=32, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    )
    theirs = {
        name.removeprefix("transformer."): tuple(tensor.shape)
        for name, tensor in reference.state_dict().items()
        if name != "lm_head.weight"
    }
    ours = {spec.hf_name: spec.shape[::-1] if spec.hf_transposed else spec.shape for spec in tensor_table(SMALL)}
    assert ours == theirs


@pytest.mark.parametrize("size", [1, 2, 4])
def test_initial_values_do_not_depend_on_the_slicing(size: int) -> None:
    for spec in tensor_table(SMALL):
        whole = join_slices(spec, [initial_slice(spec, SMALL, 7, 0, 1)])
        slices = [initial_slice(spec, SMALL, 7, rank, size) for rank in range(size)]
        assert all(tuple(piece.shape) == spec.slice_shape(SMALL, size) for piece in slices)
        assert torch.equal(join_slices(spec, slices), whole), spec.name


def test_initial_values_have_the_paper_s_spread() -> None:
    model = ModelConfig(num_layers=8, hidden_size=192, num_attention_heads=4, sequence_length=64, vocab_size=1000)
    for spec in tensor_table(model):
        values = join_slices(spec, [initial_slice(spec, model, 7, 0, 1)])
        if spec.init in (Init.NORMAL, Init.RESIDUAL):
            expected = (1 / (3 * 192)) ** 0.5 / (16**0.5 if spec.init is Init.RESIDUAL else 1)
            assert values.std().item() == pytest.approx(expected, rel=0.03), spec.name
            assert abs(values.mean().item()) < 0.05 * expected + 0.002, spec.name
        else:
            assert torch.all(values == (1.0 if spec.init is Init.ONES else 0.0)), spec.name


def test_another_seed_or_tensor_gives_other_values() -> None:
    first, second = tensor_table(SMALL)[0], tensor_table(SMALL)[1]
    ours = initial_slice(first, SMALL, 7, 0, 1)
    assert not torch.equal(ours, initial_slice(first, SMALL, 8, 0, 1))
    assert not torch.equal(ours[:32], initial_slice(second, SMALL, 7, 0, 1))
