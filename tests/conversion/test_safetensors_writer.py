"""The streaming writer writes what the safetensors library reads."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from conversion.safetensors_writer import SafetensorsWriter, TensorEntry

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TENSORS = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=6)


def entry(tensor: torch.Tensor) -> TensorEntry:
    return TensorEntry(tuple(tensor.shape), tensor.dtype)


@settings(max_examples=50, deadline=None)
@given(described=TENSORS, order=st.randoms(use_true_random=False))
def test_library_reads_back_every_bit(
    tmp_path_factory: pytest.TempPathFactory, described: list[tuple[torch.dtype, list[int]]], order: object
) -> None:
    tensors = {f"t{n}": torch.randn(shape).to(dtype) for n, (dtype, shape) in enumerate(described)}
    path = tmp_path_factory.mktemp("safetensors") / "model.safetensors"
    names = list(tensors)
    order.shuffle(names)  # type: ignore[attr-defined]
    with SafetensorsWriter(path, {name: entry(tensor) for name, tensor in tensors.items()}) as writer:
        for name in names:
            writer.write(name, tensors[name])
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_a_transposed_view_is_written_in_its_own_order(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    with SafetensorsWriter(tmp_path / "t", {"t": entry(tensor)}) as writer:
        writer.write("t", tensor)
    assert torch.equal(load_file(tmp_path / "t")["t"], tensor)


def test_what_was_not_announced_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="announced as"),
        SafetensorsWriter(tmp_path / "t", {"t": TensorEntry((2,), torch.float32)}) as writer,
    ):
        writer.write("t", torch.zeros(3))
    with pytest.raises(ValueError, match="never written: t"):
        SafetensorsWriter(tmp_path / "t", {"t": TensorEntry((2,), torch.float32)}).__exit__(None, None, None)
