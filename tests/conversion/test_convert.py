"""The verb: what it finds, what it refuses, what it leaves behind."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conversion import write
from conversion.plan import OutputTensor
from foundation.errors import UserError
from tests.conversion.training_checkpoint import SMALL, commit, convert, make_gpt2, write_training_checkpoint

WEIGHTS = "weights-stage-000-slice-001.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL, tensor_parallel_size=2)
    return tmp_path / "run"


@pytest.fixture
def step(run: Path) -> Path:
    return run / "checkpoints" / "step-00000300"


def refused(source: Path, message: str, **options: object) -> None:
    out = source.parent / "out"
    with pytest.raises(UserError, match=message) as caught:
        convert(source, out, **{"to": "hf", **options})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/step-00000300"])
def test_source_may_be_run_checkpoints_or_step(run: Path, inside: str) -> None:
    convert(run / inside, run.parent / "out", to="hf")
    assert (run.parent / "out" / "model.safetensors").is_file()


def test_latest_chooses_the_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_checkpoint(run, make_gpt2(SMALL, seed=1), SMALL, step=400)
    convert(run, run.parent / "out", to="hf")
    assert "step 400" in capsys.readouterr().out


def test_no_checkpoint(run: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no checkpoint at .*nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no checkpoint at .*empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("no model")
    refused(tmp_path / "other", "no checkpoint at .*other")


def test_torn_checkpoint_names_a_whole_one(run: Path, step: Path) -> None:
    torn = write_training_checkpoint(run, make_gpt2(SMALL), SMALL, step=400)
    (torn / "manifest.json").unlink()
    refused(run, "no committed checkpoint at .*step-00000400.*step-00000300 is whole")
    refused(torn, "no committed checkpoint at .*step-00000400")


def test_missing_file(run: Path, step: Path) -> None:
    (step / WEIGHTS).unlink()
    refused(run, f"damaged checkpoint: .*{WEIGHTS} is missing")


def test_truncated_file(run: Path, step: Path) -> None:
    whole = (step / WEIGHTS).read_bytes()
    (step / WEIGHTS).write_bytes(whole[:-100])
    refused(run, f"damaged checkpoint: .*{WEIGHTS} has {len(whole) - 100} bytes instead of {len(whole)}")


def test_flipped_bit(run: Path, step: Path) -> None:
    content = bytearray((step / WEIGHTS).read_bytes())
    content[len(content) // 2] ^= 1
    (step / WEIGHTS).write_bytes(content)
    refused(run, f"damaged checkpoint: .*{WEIGHTS} was changed")
    # Nor is anything kept that was made of it.
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_replicas_that_differ_name_tensor_and_files(run: Path, step: Path) -> None:
    held = load_file(step / WEIGHTS)
    held["layers.0.mlp.dense_4h_to_h.bias"][0] += 1
    save_file(held, step / WEIGHTS)
    commit(step, SMALL, tensor_parallel_size=2, step=300, precision="fp32")
    refused(run, f"layers.0.mlp.dense_4h_to_h.bias differs between tensor-parallel ranks 0 and 1: files .*{WEIGHTS}")


def test_wrong_shape_names_the_file(run: Path, step: Path) -> None:
    held = load_file(step / WEIGHTS)
    held["layers.0.attention.dense.weight"] = held["layers.0.attention.dense.weight"].t().contiguous()
    save_file(held, step / WEIGHTS)
    commit(step, SMALL, tensor_parallel_size=2, step=300, precision="fp32")
    refused(run, rf"{WEIGHTS}: tensor layers.0.attention.dense.weight has shape \(16, 32\)")


def test_pickled_code_is_not_run(run: Path, step: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(step / "ran"),)

    torch.save({"weight": Evil()}, step / WEIGHTS)
    commit(step, SMALL, tensor_parallel_size=2, step=300, precision="fp32")
    refused(run, f"{WEIGHTS} cannot be read")
    assert not (step / "ran").exists()


def test_slices_of_hf_are_refused(run: Path) -> None:
    refused(run, "--tensor-parallel-size is not for --to hf", tensor_parallel_size=2)


def test_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    model = SMALL.model_copy(update={"vocab_size": 200})
    write_training_checkpoint(tmp_path / "run", make_gpt2(model), model)
    refused(tmp_path / "run", "token id 258, but the model's vocab_size is 200")


def test_finished_output_is_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "out"
    convert(run, out, to="vllm", tensor_parallel_size=2)
    written = (out / "manifest.json").stat().st_mtime_ns
    convert(run, out, to="vllm", tensor_parallel_size=2)
    assert "already converted" in capsys.readouterr().out
    assert (out / "manifest.json").stat().st_mtime_ns == written


def test_damaged_output_is_written_again(run: Path) -> None:
    out = run.parent / "out"
    convert(run, out, to="hf")
    whole = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(whole[:-1])
    convert(run, out, to="hf")
    assert (out / "model.safetensors").read_bytes() == whole


def test_different_output_needs_overwrite(run: Path) -> None:
    out = run.parent / "out"
    convert(run, out, to="hf")
    with pytest.raises(UserError, match=r"already holds another conversion .*--overwrite"):
        convert(run, out, to="hf", dtype="bfloat16")
    assert (out / "model.safetensors").is_file()
    convert(run, out, to="vllm", overwrite=True)
    assert not (out / "model.safetensors").exists()
    assert (out / "model-rank-0-part-0.safetensors").is_file()


def test_a_folder_of_somebody_else_is_never_replaced(run: Path, step: Path) -> None:
    for out in (run, step, run.parent):
        with pytest.raises(UserError, match="not a finished conversion"):
            convert(run, out, to="hf", overwrite=True)
    assert (step / WEIGHTS).is_file()


@pytest.mark.parametrize("to", ["hf", "vllm", "training"])
def test_interrupted_anywhere_the_same_command_finishes_with_the_same_bytes(
    run: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, options = run.parent / "out", {"to": to, "file_bytes": 40_000}
    convert(run, run.parent / "whole", **options)
    written = interrupt_at(monkeypatch, 25)
    with pytest.raises(KeyboardInterrupt):
        convert(run, out, **options)
    assert not list(out.rglob("manifest.json"))
    assert not (out / "checkpoints" / "latest").exists()
    first = list(written)
    monkeypatch.undo()
    again = interrupt_at(monkeypatch, 10_000)
    convert(run, out, **options)
    # Finished files are not written again; the one in which it stopped is.
    assert 0 < len(set(first) & set(again)) < len(first)
    assert contents(out) == contents(run.parent / "whole")
    assert sorted(path.name for path in run.parent.iterdir()) == ["out", "run", "whole"]


def test_a_leftover_of_another_conversion_is_not_continued(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run.parent / "out"
    interrupt_at(monkeypatch, 20)
    with pytest.raises(KeyboardInterrupt):
        convert(run, out, to="hf", file_bytes=40_000)
    monkeypatch.undo()
    convert(run, out, to="vllm", tensor_parallel_size=2)
    convert(run, run.parent / "whole", to="vllm", tensor_parallel_size=2)
    assert contents(out) == contents(run.parent / "whole")


def test_a_full_disk_is_one_line_and_is_finished_later(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    refused(run, "cannot be written: No space left on device")
    monkeypatch.undo()
    convert(run, run.parent / "out", to="hf")
    assert (run.parent / "out" / "manifest.json").is_file()


def interrupt_at(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """Stop the conversion, as Ctrl-C would, before its tensor number `count`; the list of those written grows."""
    written: list[str] = []
    original = write.make

    def stopping(plan: object, tensor: OutputTensor, *rest: object) -> object:
        if len(written) == count:
            raise KeyboardInterrupt
        written.append(f"{tensor.key}, slice {tensor.placement.rank if tensor.placement else 0}")
        return original(plan, tensor, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(write, "make", stopping)
    return written


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
