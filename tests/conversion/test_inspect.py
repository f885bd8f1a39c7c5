"""`mtnlg checkpoint inspect`: every line that it promises, for each format of this project."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import conversion.write
from conversion.inspect import inspect
from conversion.plan import OutputTensor, Plan
from conversion.safetensors_file import read_header
from foundation.errors import UserError
from tests.conversion.command import mtnlg_exit
from tests.conversion.training_checkpoint import SMALL, convert, make_gpt2, write_training_checkpoint
from training.model.tensors import parameter_count, tensor_table

PARAMETERS = parameter_count(SMALL.model_copy(update={"vocab_size_multiple": 1}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL, tensor_parallel_size=2)
    return tmp_path / "run"


def inspected(path: Path, capsys: pytest.CaptureFixture[str], **options: bool) -> dict[str, Any]:
    capsys.readouterr()
    inspect(path, as_json=True, **options)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def interrupted(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """A conversion that stops in the second block, some files finished."""
    original = conversion.write.make

    def make(plan: Plan, tensor: OutputTensor, *rest: Any) -> torch.Tensor:
        if tensor.spec is not None and tensor.spec.name.startswith("layers.1.mlp"):
            raise KeyboardInterrupt
        return original(plan, tensor, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(conversion.write, "make", make)
        convert(source, out, **options)


def test_the_table_says_what_a_training_checkpoint_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(run)
    out = capsys.readouterr().out
    step = run / "checkpoints" / "step-00000300"
    files = [path for path in step.rglob("*") if path.is_file() and path.name != "manifest.json"]
    size = sum(path.stat().st_size for path in files)
    for title, text in {
        "checkpoint": str(step),
        "format": "mtnlg-training-checkpoint",
        "committed": "yes",
        "step": "300",
        "layout": "tensor 2 x pipeline 2 x data 1",
        "model": f"2 layers, hidden 32, 4 heads, sequence 48, vocabulary 300, {PARAMETERS:,} parameters",
        "states": "weight float32",
        "files": f"{len(files)}, {size:,} bytes",
    }.items():
        assert f"{title:<16}{text}\n" in out
    assert "converted from" not in out


def test_blocks_are_one_line_a_kind_unless_all_are_wanted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(run)
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    kind = "layers.N.attention.query_key_value.weight"
    assert lines[kind] == ["[96,", "32]", "float32", "qkv", "2", f"{2 * 96 * 32 * 4:,}", "2"]
    # The vocabulary is stored with its padding, 512 rows.
    assert lines["word_embeddings.weight"] == ["[300,", "32]", "float32", "vocabulary", "2", f"{512 * 32 * 4:,}", "1"]
    # A replicated tensor is stored on both ranks, of both blocks.
    assert lines["layers.N.input_layernorm.bias"] == ["[32]", "float32", "replicated", "2", f"{2 * 2 * 32 * 4}", "2"]
    inspect(run, all_tensors=True)
    out = capsys.readouterr().out
    assert "layers.N." not in out
    assert all(f"{spec.name} " in out for spec in tensor_table(SMALL))


def test_json_is_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(run, capsys)
    assert found["path"] == str(run / "checkpoints" / "step-00000300")
    assert (found["format"], found["committed"], found["step"]) == ("mtnlg-training-checkpoint", True, 300)
    assert found["layout"]["tensor_parallel_size"] == found["layout"]["pipeline_parallel_size"] == 2
    assert found["model"] == {
        "layers": 2,
        "hidden": 32,
        "heads": 4,
        "sequence": 48,
        "vocabulary": 300,
        "parameters": PARAMETERS,
    }
    assert found["states"] == {"weight": ["float32"]}
    assert found["converted_from"] is None
    assert {row["name"]: row["count"] for row in found["tensors"]}["layers.N.mlp.dense_h_to_4h.bias"] == 2
    assert len(inspected(run, capsys, all_tensors=True)["tensors"]) == len(tensor_table(SMALL))


def test_the_optimizer_is_listed_when_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(run, run.parent / "again", to="training", dtype="bfloat16", tensor_parallel_size=4)
    found = inspected(run.parent / "again", capsys, optimizer=True, all_tensors=True)
    states = {"weight": ["bfloat16"], "master": ["float32"], "exp_avg": ["float32"], "exp_avg_sq": ["float32"]}
    assert found["states"] == states
    assert len(found["tensors"]) == 4 * len(tensor_table(SMALL))
    assert {row["state"] for row in inspected(run.parent / "again", capsys)["tensors"]} == {"weight"}
    inspect(run.parent / "again", optimizer=True)
    out = capsys.readouterr().out
    assert "states          weight bfloat16; master float32; exp_avg float32; exp_avg_sq float32" in out
    listed = [line.split()[:6] for line in out.splitlines()]
    assert ["word_embeddings.weight", "exp_avg_sq", "[300,", "32]", "float32", "vocabulary"] in listed


@pytest.mark.parametrize(("to", "slices"), [("hf", 1), ("vllm", 2)])
def test_an_output_says_where_it_came_from(run: Path, to: str, slices: int, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / to
    convert(run, out, to=to, tensor_parallel_size=slices)
    found = inspected(out, capsys)
    assert found["step"] == 300
    assert found["layout"]["tensor_parallel_size"] == slices
    assert {row["slices"] for row in found["tensors"]} == {slices}
    assert found["converted_from"]["format"] == "mtnlg-training-checkpoint"
    assert found["converted_from"]["layout"]["pipeline_parallel_size"] == 2
    inspect(out)
    line = "converted from  mtnlg-training-checkpoint, tensor 2 x pipeline 2 x data 1, manifest "
    assert line + found["converted_from"]["sha256"][:16] in capsys.readouterr().out


def test_an_unfinished_output_is_said_to_be_that(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run.parent / "out"
    interrupted(run, out, monkeypatch, to="vllm", file_bytes=20_000)
    building = out.with_name(".out.unfinished")
    for path in (building, out):
        with pytest.raises(UserError, match=r"\.out\.unfinished is an unfinished conversion, interrupted after \d+ "):
            inspect(path)
    interrupted(run, run.parent / "again", monkeypatch, to="training", pipeline_parallel_size=2)
    with pytest.raises(UserError, match=r"\.step-00000300\.unfinished is an unfinished conversion"):
        inspect(run.parent / "again")


def test_a_checkpoint_without_a_manifest_is_not_committed(run: Path) -> None:
    (run / "checkpoints" / "step-00000300" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no committed checkpoint at .*its writing never finished"):
        inspect(run)


def test_a_vllm_folder_needs_its_manifest_and_every_tensor(run: Path) -> None:
    out = run.parent / "vllm"
    convert(run, out, to="vllm", tensor_parallel_size=2, file_bytes=20_000)
    text = (out / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    (head,) = (path for path in out.glob("model-rank-1-*") if "lm_head.weight" in read_header(path)[1])
    del manifest["files"][head.name]
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match=r"no file of rank 1 has tensor lm_head\.weight"):
        inspect(out)
    (out / "manifest.json").write_text(text.replace('"hidden_size": 32', '"hidden_size": 64'), encoding="utf-8")
    with pytest.raises(UserError, match=r"has shape \(160, 32\) where .* has \(160, 64\)"):
        inspect(out)
    (out / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        inspect(out)


@pytest.mark.parametrize("to", [("training", 1), ("vllm", 4)])
def test_a_vllm_folder_can_be_converted_back(run: Path, to: tuple[str, int]) -> None:
    convert(run, run.parent / "vllm", to="vllm", tensor_parallel_size=2)
    convert(run.parent / "vllm", run.parent / "back", to=to[0], tensor_parallel_size=to[1])
    convert(run, run.parent / "direct", to=to[0], tensor_parallel_size=to[1], pipeline_parallel_size=1)
    back, direct = (
        {path.name: path.read_bytes() for path in (run.parent / name).rglob("*.safetensors")}
        for name in ("back", "direct")
    )
    assert back == direct != {}


@pytest.mark.parametrize("verb", [["inspect", "PATH"], ["verify", "PATH"], ["diff", "PATH", "PATH"]])
def test_a_wrong_path_is_one_line_and_exit_2(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = Path("configs/train/demo.yaml").absolute()
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "gone", "no checkpoint at"),
        (tmp_path / "empty", "no checkpoint at"),
        (configuration, "is a configuration, not a checkpoint"),
    ):
        arguments = [path if word == "PATH" else word for word in verb]
        assert mtnlg_exit(monkeypatch, "checkpoint", *arguments) == 2
        written = capsys.readouterr()
        assert written.out == ""
        (line,) = written.err.splitlines()
        assert line.startswith("mtnlg: ") and str(path) in line and message in line


@pytest.mark.parametrize("verb", ["inspect", "verify", "diff"])
def test_help_shows_an_example(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert mtnlg_exit(monkeypatch, "checkpoint", verb, "--help") == 0
    assert f"Example: mtnlg checkpoint {verb}" in capsys.readouterr().out


def test_help_imports_no_torch() -> None:
    script = (
        "import sys, mtnlg\nsys.argv = ['mtnlg', 'checkpoint', 'inspect', '--help']\n"
        "try: mtnlg.main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "False"


def test_the_command_prints_json(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mtnlg_exit(monkeypatch, "checkpoint", "inspect", run, "--json", "--all", "--optimizer") == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == len(tensor_table(SMALL))
