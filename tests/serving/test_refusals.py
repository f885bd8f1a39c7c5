"""What is refused, in one line, before anything heavy is loaded."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from foundation.errors import UserError
from serving.model_folder import ParallelSizes, inspect_model
from serving.server import listening_socket, serve


def test_sharded_folder_dictates_the_slices(models: Path) -> None:
    model = inspect_model(models / "vllm2", ParallelSizes())
    assert (model.name, model.tensor_parallel_size, model.sharded, model.dtype) == ("vllm2", 2, True, "float32")
    assert inspect_model(models / "vllm2", ParallelSizes(2)) == model


def test_other_number_of_slices_is_refused(models: Path) -> None:
    with pytest.raises(UserError, match="holds 2 tensor slices, so --tensor-parallel-size 1 cannot serve it"):
        inspect_model(models / "vllm2", ParallelSizes(1))


def test_hf_folder_takes_any_number_of_slices(models: Path) -> None:
    assert inspect_model(models / "hf", ParallelSizes()).tensor_parallel_size == 1
    assert inspect_model(models / "hf", ParallelSizes(2)).tensor_parallel_size == 2
    assert not inspect_model(models / "hf", ParallelSizes(2)).sharded


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=r"no model at .*no config\.json"):
            inspect_model(folder, ParallelSizes())


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_damaged_slices_are_refused(models: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "vllm"
    shutil.copytree(models / "vllm2", folder)
    path = folder / "model-rank-1-part-0.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "short":
        path.write_bytes(content[:-4])
    else:
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged model: .*model-rank-1-part-0\.safetensors"):
        inspect_model(folder, ParallelSizes())


def test_folder_of_another_maker_is_taken_on_trust(models: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "torch_dtype": "bfloat16"}))
    (tmp_path / "tokenizer.json").touch()
    model = inspect_model(tmp_path, ParallelSizes())
    assert (model.tensor_parallel_size, model.sharded, model.dtype) == (1, False, "bfloat16")


def test_port_that_is_taken_is_refused_before_the_engine_is_loaded(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("the engine was touched")

    monkeypatch.setattr("serving.server.parse_options", loaded)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another --port"):
            serve(models / "vllm1", port=port)


def test_port_0_takes_a_free_one() -> None:
    with listening_socket("127.0.0.1", 0) as first, listening_socket("127.0.0.1", 0) as second:
        assert first.getsockname()[1] != second.getsockname()[1] > 0
