"""`mtnlg checkpoint verify`: what is damaged is named, what is whole is said to be whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conversion.safetensors_file import read_header
from conversion.verify import verify
from foundation.errors import UserError
from tests.conversion.command import mtnlg_exit
from tests.conversion.training_checkpoint import SMALL, commit, convert, make_gpt2, write_training_checkpoint
from training.model.tensors import tensor_table

TENSORS = len(tensor_table(SMALL))
WEIGHTS = "weights-stage-000-slice-001.safetensors"
RANK_1 = "model-rank-1-part-0.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", make_gpt2(SMALL))


@pytest.fixture
def vllm(run: Path) -> Path:
    convert(run, run.parent / "vllm", to="vllm", tensor_parallel_size=2)
    return run.parent / "vllm"


def written(run: Path, gpt2: Any) -> Path:
    write_training_checkpoint(run, gpt2, SMALL, tensor_parallel_size=2)
    return run


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def problems(path: Path, capsys: pytest.CaptureFixture[str], count: int) -> list[str]:
    """The lines that are printed of a damaged checkpoint."""
    capsys.readouterr()
    some = f"{count} problem{'s' if count > 1 else ''}"
    with pytest.raises(UserError, match=f"{path}: {some}; use another checkpoint, or copy it again"):
        verify(path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count
    return lines


@pytest.mark.parametrize(("to", "options"), [("hf", {}), ("vllm", {"tensor_parallel_size": 2}), ("training", {})])
def test_a_whole_output(run: Path, to: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    convert(run, run.parent / "out", to=to, **options)
    capsys.readouterr()
    verify(run.parent / "out")
    folder = run.parent / "out" / "checkpoints" / "step-00000300" if to == "training" else run.parent / "out"
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    size = sum(path.stat().st_size for path in files)
    count = TENSORS * (4 if to == "training" else 1)
    printed = capsys.readouterr()
    assert printed.out == f"{run.parent / 'out'}: whole, {len(files)} files, {size:,} bytes, {count} tensors\n"
    assert printed.err == ""


def test_a_flipped_bit_is_named_by_tensor(vllm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, entries = read_header(vllm / RANK_1)
    flip(vllm / RANK_1, entries["transformer.h.1.mlp.c_fc.weight"].offset + 17)
    (line,) = problems(vllm, capsys, 1)
    assert line == (
        f"{vllm / RANK_1} was changed: its sha256 differs from the manifest's; "
        "damaged tensors: transformer.h.1.mlp.c_fc.weight"
    )


def test_many_damaged_tensors_are_counted(vllm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, entries = read_header(vllm / RANK_1)
    columns = [entry for key, entry in entries.items() if "c_attn" in key or "c_fc" in key]
    for entry in columns:
        flip(vllm / RANK_1, entry.offset)
    (line,) = problems(vllm, capsys, 1)
    assert line.endswith(f" and {len(columns) - 5} more")


def test_a_damaged_header_is_told_from_a_damaged_tensor(vllm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (vllm / RANK_1).read_bytes()
    (vllm / RANK_1).write_bytes(whole.replace(b'"format":"pt"', b'"format":"tp"', 1))
    (line,) = problems(vllm, capsys, 1)
    assert line.endswith("; every tensor is whole, the header is not")
    (vllm / RANK_1).write_bytes(whole[:8] + b"x" + whole[9:])
    (line,) = problems(vllm, capsys, 1)
    assert line.endswith("; its header is damaged")


def test_every_damaged_file_has_a_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = run / "checkpoints" / "step-00000300"
    flip(step / "tokenizer" / "vocab.json", 10)
    (step / WEIGHTS).unlink()
    other = step / "weights-stage-001-slice-000.safetensors"
    size = other.stat().st_size
    other.write_bytes(other.read_bytes()[:-4])
    lines = problems(run, capsys, 3)
    assert f"{step / WEIGHTS} is missing" in lines
    assert f"{other} has {size - 4} bytes instead of {size}" in lines
    assert f"{step / 'tokenizer' / 'vocab.json'} was changed: its sha256 differs from the manifest's" in lines


def test_files_that_the_manifest_does_not_know(vllm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (vllm / "notes.txt").write_text("mine", encoding="utf-8")
    capsys.readouterr()
    verify(vllm)
    printed = capsys.readouterr()
    assert printed.err == f"mtnlg: warning: {vllm}: not in its manifest.json: notes.txt\n"
    assert ": whole, " in printed.out


def test_replicas_that_differ(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = run / "checkpoints" / "step-00000300"
    held = load_file(step / WEIGHTS)
    held["layers.0.mlp.dense_4h_to_h.bias"][0] += 1
    save_file(held, step / WEIGHTS)
    commit(step, SMALL, tensor_parallel_size=2, step=300, precision="fp32")
    (line,) = problems(run, capsys, 1)
    assert "layers.0.mlp.dense_4h_to_h.bias differs between tensor-parallel ranks 0 and 1" in line


def test_values_that_are_not_finite_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_gpt2(SMALL)
    weights = gpt2.transformer.state_dict()
    weights["h.0.mlp.c_fc.weight"][3, 5:8] = float("nan")
    weights["h.0.mlp.c_fc.weight"][3, 100] = float("inf")
    weights["ln_f.bias"][4] = float("nan")
    verify(written(tmp_path / "run", gpt2))
    printed = capsys.readouterr()
    step = tmp_path / "run" / "checkpoints" / "step-00000300"
    assert printed.err.splitlines() == [
        f"mtnlg: warning: {step}: layers.0.mlp.dense_h_to_4h.weight (weight): 4 of 4,096 values are NaN or infinite",
        f"mtnlg: warning: {step}: final_layernorm.bias (weight): 1 of 32 values are NaN or infinite",
    ]
    assert ": whole, " in printed.out


def test_a_manifest_that_misses_a_file_does_not_open(vllm: Path) -> None:
    manifest = json.loads((vllm / "manifest.json").read_text(encoding="utf-8"))
    del manifest["files"][RANK_1]
    (vllm / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match="no file of rank 1 has tensor"):
        verify(vllm)


def test_without_a_manifest_what_can_be_checked_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_gpt2(SMALL)
    gpt2.transformer.state_dict()["ln_f.bias"][4] = float("nan")
    gpt2.save_pretrained(tmp_path / "foreign")
    capsys.readouterr()
    verify(tmp_path / "foreign")
    printed = capsys.readouterr()
    assert "final_layernorm.bias (weight): 1 of 32 values are NaN or infinite" in printed.err
    assert printed.out.startswith(f"{tmp_path / 'foreign'}: readable, 1 files, ")
    assert printed.out.endswith(f"{TENSORS} tensors; it has no manifest.json to compare its files with\n")


def test_the_command_exits_with_2(
    vllm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mtnlg_exit(monkeypatch, "checkpoint", "verify", vllm) == 0
    flip(vllm / RANK_1, read_header(vllm / RANK_1)[1]["lm_head.weight"].offset)
    capsys.readouterr()
    assert mtnlg_exit(monkeypatch, "checkpoint", "verify", vllm) == 2
    assert capsys.readouterr().err == f"mtnlg: {vllm}: 1 problem; use another checkpoint, or copy it again\n"
