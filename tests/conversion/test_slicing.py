"""Cutting and joining are inverse for every tensor of every shape of model."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.model.config import ModelConfig
from training.model.slicing import join_slices, take_slice
from training.model.tensors import tensor_table


@st.composite
def models_and_sizes(draw: st.DrawFn) -> tuple[ModelConfig, int]:
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = size * draw(st.integers(1, 3))
    model = ModelConfig(
        num_layers=draw(st.integers(1, 2)),
        hidden_size=heads * draw(st.integers(1, 5)),
        num_attention_heads=heads,
        sequence_length=draw(st.integers(1, 9)),
        vocab_size=draw(st.integers(1, 70)),
        vocab_size_multiple=draw(st.sampled_from([1, 4, 16])),
    )
    return model, size


@settings(max_examples=60, deadline=None)
@given(models_and_sizes())
def test_join_is_the_inverse_of_take(drawn: tuple[ModelConfig, int]) -> None:
    model, size = drawn
    for spec in tensor_table(model):
        whole = torch.randn(spec.shape)
        slices = [take_slice(spec, whole, model, rank, size) for rank in range(size)]
        assert {tuple(piece.shape) for piece in slices} == {spec.slice_shape(model, size)}
        assert all(piece.is_contiguous() for piece in slices)
        assert torch.equal(join_slices(spec, slices), whole)
