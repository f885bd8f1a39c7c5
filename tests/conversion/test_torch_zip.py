"""Files of torch.save: what is read from them without running anything, and that ours are files of torch.save."""

import contextlib
import os
import pickle
import random
import sys
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conversion.placement import Placement
from conversion.plan import OutputTensor
from conversion.stored import Extent, StoredSlice
from conversion.torch_zip import Placeholder, TorchTensor, read_torch_file, torch_file_fingerprint
from conversion.torch_zip_layout import TorchZip
from foundation.errors import UserError


class Kind(Enum):
    """An enum of some package that is not installed."""

    GPT = 1


class Evil:
    """Calls `function` when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: str) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return self.call


def save(tmp_path: Path, saved: Any) -> Path:
    path = tmp_path / "saved.pt"
    torch.save(saved, path)
    return path


def load(described: TorchTensor) -> torch.Tensor:
    extents = (Extent(described.file, described.offset, 0, described.elements),)
    rows = described.shape[0]
    with StoredSlice(described.shape, described.dtype, Placement(0, rows, rows), extents).open() as tensor:
        return tensor.clone()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool]
)
def test_tensors_are_where_they_are_said_to_be(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.arange(35.0).view(5, 7).to(dtype), "b": torch.ones(3, dtype=dtype)}
    tensors["view"] = torch.arange(100.0).to(dtype)[40:80].view(4, 10)
    found = read_torch_file(save(tmp_path, {"nested": OrderedDict(tensors)}))["nested"]
    assert isinstance(found, OrderedDict)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].shape, found[name].dtype) == (tuple(tensor.shape), dtype)
        assert torch.equal(load(found[name]), tensor)


def test_parameters_and_shared_storages(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 2))
    found = read_torch_file(save(tmp_path, [weight, weight, weight.data]))
    assert found[0] is found[1]
    assert torch.equal(load(found[2]), weight)
    assert found[2].offset == found[0].offset


def test_strides_are_kept(tmp_path: Path) -> None:
    found = read_torch_file(
        save(tmp_path, {"t": torch.ones(3, 4).t(), "row": torch.ones(1, 6)[:, ::1], "e": torch.ones(0)})
    )
    assert found["t"].strides == (1, 4)
    assert not found["t"].contiguous
    assert found["row"].contiguous
    assert found["e"].contiguous


def test_what_checkpoints_hold_besides_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kind, "__module__", "megatron.core.enums")
    monkeypatch.setitem(sys.modules, "megatron.core.enums", SimpleNamespace(Kind=Kind))
    held = {
        "args": Namespace(num_layers=2, params_dtype=torch.bfloat16, kind=Kind.GPT, path=Path("x")),
        "rng": [np.random.RandomState(1).get_state(), torch.get_rng_state(), {1, 2}],
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "number": np.float32(2),
    }
    found = read_torch_file(save(tmp_path, held))
    args = found["args"]
    assert isinstance(args, Placeholder)
    assert (args.name, args.state["num_layers"], args.state["params_dtype"]) == (
        "argparse.Namespace",
        2,
        torch.bfloat16,
    )
    kind = args.state["kind"]
    assert isinstance(kind, Placeholder)
    # Python 3.11.0 to 3.11.3 pickle a member of an enum as `getattr` of its class, others as a call with its value.
    assert (kind.name, kind.args[-1]) in (("megatron.core.enums.Kind", 1), ("builtins.getattr", "GPT"))
    assert isinstance(found["rng"][1], TorchTensor)


@pytest.mark.parametrize("function", [os.system, os.mkdir, eval, exec, pickle.loads, __import__, print])
def test_code_is_refused_and_not_run(tmp_path: Path, function: Callable[..., Any]) -> None:
    path = save(tmp_path, {"model": {"weight": Evil(function, str(tmp_path / "ran"))}})
    with pytest.raises(UserError, match=rf"saved.pt names \w+\.{function.__name__}, .*nothing was executed") as caught:
        read_torch_file(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_known_packages_are_not_run_either(tmp_path: Path) -> None:
    found = read_torch_file(save(tmp_path, Evil(torch.save, "nothing", str(tmp_path / "ran"))))
    assert isinstance(found, Placeholder)
    assert not (tmp_path / "ran").exists()


def test_a_tensor_cannot_be_moved_to_another_file(tmp_path: Path) -> None:
    path = save(tmp_path, torch.ones(2))
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in records if name.endswith("data.pkl"))
    records[name] = records[name].removesuffix(b".") + b"}X\x04\x00\x00\x00fileX\x01\x00\x00\x00xsb."
    with zipfile.ZipFile(path, "w") as archive:
        for record, content in records.items():
            archive.writestr(record, content)
    refused(path, "data.pkl is damaged")


def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_torch_file(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere.pt", "is missing")
    (tmp_path / "text.pt").write_text("hello", encoding="utf-8")
    refused(tmp_path / "text.pt", "not a file of torch.save")
    torch.save(torch.ones(3), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "old.pt", "before torch 1.6")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("other.txt", "hello")
    refused(tmp_path / "other.pt", "no data.pkl")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_torn_file(tmp_path: Path, kept: float) -> None:
    path = save(tmp_path, torch.randn(100))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    refused(path, "cut short or damaged")


def test_damaged_pickle(tmp_path: Path) -> None:
    path = save(tmp_path, {"a": torch.randn(100)})
    content = bytearray(path.read_bytes())
    content[content.index(b"\x80\x02}") + 2] ^= 1
    path.write_bytes(content)
    refused(path, "is not what its checksum says")


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_is_one_line(tmp_path: Path, seed: int) -> None:
    path = save(tmp_path, {"args": Namespace(a=1, b={2}), "model": OrderedDict(w=torch.ones(4, 4))})
    whole, generator = path.read_bytes(), random.Random(seed)
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(UserError):
            read_torch_file(path)
        # The same inside the pickle, with a checksum that is right.
        inner = bytearray(records["saved/data.pkl"])
        inner[generator.randrange(len(inner))] = generator.randrange(256)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**records, "saved/data.pkl": bytes(inner)}.items():
                archive.writestr(name, content)
        with contextlib.suppress(UserError):
            read_torch_file(path)


def test_compressed_or_big_endian_or_too_small_records(tmp_path: Path) -> None:
    path = save(tmp_path, torch.ones(100))
    with zipfile.ZipFile(path) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}

    def write(compression: int, changed: dict[str, bytes]) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in records.items():
                archive.writestr(name, changed.get(name.partition("/")[2], content))

    write(zipfile.ZIP_DEFLATED, {})
    refused(path, "is compressed")
    write(zipfile.ZIP_STORED, {"byteorder": b"big"})
    refused(path, "big-endian")
    write(zipfile.ZIP_STORED, {"data/0": b"short"})
    refused(path, "has 5 bytes where 100 elements should be")
    records.pop("saved/data/0")
    write(zipfile.ZIP_STORED, {})
    refused(path, "has no record saved/data/0")


def test_fingerprint_changes_with_a_tensor(tmp_path: Path) -> None:
    first = torch_file_fingerprint(save(tmp_path, {"a": torch.tensor([1.0, 2.0])}))
    assert first == torch_file_fingerprint(save(tmp_path, {"a": torch.tensor([1.0, 2.0])}))
    assert first != torch_file_fingerprint(save(tmp_path, {"a": torch.tensor([1.0, 3.0])}))


def write_ours(path: Path, tree: dict[str, Any], tensors: dict[OutputTensor, torch.Tensor]) -> None:
    container, content, checksums = TorchZip(tree, list(tensors)), b"", []
    for entry, tensor in zip(container.entries, tensors.values(), strict=True):
        content += container.between(checksums)
        assert len(content) == entry.offset
        data = memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())
        content += data.tobytes()
        checksums.append(container.checksum(data))
    path.write_bytes(content + container.between(checksums))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ours_is_a_file_of_torch_save(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes = {"matrix": (5, 7), "vector": (3,), "cube": (2, 3, 4)}
    tensors = {OutputTensor(name, shape, dtype): torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    tree = {"args": Namespace(dtype=dtype, layers=2), "model": {tensor.key: tensor for tensor in tensors}}
    path = tmp_path / "ours.pt"
    write_ours(path, tree, tensors)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    described = read_torch_file(path)
    for options in ({"weights_only": False}, {"weights_only": True}, {"weights_only": True, "mmap": True}):
        with torch.serialization.safe_globals([Namespace]):
            found = torch.load(path, **options)
        assert found["args"] == Namespace(dtype=dtype, layers=2)
        for output, tensor in tensors.items():
            assert torch.equal(found["model"][output.key], tensor)
            assert torch.equal(load(described["model"][output.key]), tensor)
            assert described["model"][output.key].offset % 64 == 0


def test_sizes_and_offsets_behind_4_gib(tmp_path: Path) -> None:
    """A sparse file: only what is around the tensors is written."""
    large, small = OutputTensor("large", (1 << 31, 3), torch.bfloat16), OutputTensor("small", (2,), torch.bfloat16)
    container = TorchZip({"large": large, "small": small}, [large, small])
    path = tmp_path / "large.pt"
    with path.open("wb") as handle:
        handle.write(container.between([]))
        handle.seek(container.entries[0].offset + large.size)
        handle.write(container.between([0]))
        assert handle.tell() == container.entries[1].offset
        handle.write(torch.tensor([1.0, 2.0], dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes())
        handle.write(container.between([0, 0]))
    with torch.serialization.safe_globals([Namespace]):
        found = torch.load(path, mmap=True, weights_only=True)
    assert found["large"].shape == (1 << 31, 3)
    assert found["small"].tolist() == [1.0, 2.0]
    assert load(read_torch_file(path)["small"]).tolist() == [1.0, 2.0]
