"""Files that are written from the header on are what the safetensors library reads, and the other way round."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from conversion.cast import Cast
from conversion.plan import OutputFile, OutputTensor, Plan
from conversion.read_training import planned_checkpoint
from conversion.safetensors_file import read_header
from conversion.write import write_files
from foundation.errors import UserError
from foundation.files import sha256_file
from tests.conversion.training_checkpoint import SMALL
from training.parallel.layout import Layout

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TENSORS = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(described=TENSORS)
def test_library_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, described: list[tuple[torch.dtype, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("written")
    tensors = tuple(
        OutputTensor(f"t{number}", tuple(shape), dtype, fill=number) for number, (dtype, shape) in enumerate(described)
    )
    plan = Plan(planned_checkpoint(folder, SMALL, Layout(), "fp32"), (OutputFile("f.safetensors", tensors),))
    written = write_files(plan, folder, {}, Cast(torch.float32), lambda size, name: None)
    path = folder / "f.safetensors"
    read = load_file(path)
    assert read.keys() == {tensor.key for tensor in tensors}
    for tensor in tensors:
        assert torch.equal(read[tensor.key], torch.full(tensor.shape, tensor.fill, dtype=tensor.dtype))
    assert written.files["f.safetensors"].sha256 == sha256_file(path)
    assert written.files["f.safetensors"].size == path.stat().st_size


@settings(max_examples=30, deadline=None)
@given(described=TENSORS)
def test_headers_of_the_library_are_read(
    tmp_path_factory: pytest.TempPathFactory, described: list[tuple[torch.dtype, list[int]]]
) -> None:
    path = tmp_path_factory.mktemp("read") / "f.safetensors"
    tensors = {f"t{number}": torch.randn(shape).to(dtype) for number, (dtype, shape) in enumerate(described)}
    save_file(tensors, path, {"format": "pt"})
    metadata, entries = read_header(path)
    assert metadata == {"format": "pt"}
    content = path.read_bytes()
    for key, tensor in tensors.items():
        entry = entries[key]
        assert (entry.shape, entry.dtype) == (tuple(tensor.shape), tensor.dtype)
        data = content[entry.offset : entry.offset + entry.size]
        assert data == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a safetensors file, or was cut short"),
        (b"\xff" * 64, "is not a safetensors file, or was cut short"),
        ((8).to_bytes(8, "little") + b"not json", "header is damaged"),
        ((2).to_bytes(8, "little") + b"[]", "header is damaged"),
        ((11).to_bytes(8, "little") + b'{"a": null}', "header is damaged"),
        (
            (65).to_bytes(8, "little") + b'{"a": {"dtype": "I8_", "shape": [1], "data_offsets": [0, 1]}}'.ljust(65),
            "tensor a holds I8_",
        ),
        (
            (65).to_bytes(8, "little") + b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'.ljust(65),
            "is cut short: 73 bytes where its header promises 109",
        ),
    ],
)
def test_what_is_no_such_file_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_header(tmp_path / "f")
    assert str(tmp_path / "f") in str(caught.value)
