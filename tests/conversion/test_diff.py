"""`mtnlg checkpoint diff`: the same weights are equal in every format, and one changed element is found."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from conversion.diff import compare_tensors, diff
from foundation.errors import UserError
from tests.conversion.command import mtnlg_exit
from tests.conversion.training_checkpoint import SMALL, convert, make_gpt2, write_training_checkpoint
from training.model.tensors import tensor_table

TENSORS = len(tensor_table(SMALL))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", make_gpt2(SMALL))


def written(run: Path, gpt2: Any, **options: Any) -> Path:
    write_training_checkpoint(run, gpt2, options.pop("model", SMALL), **{"tensor_parallel_size": 2, **options})
    return run


def compared(first: Path, second: Path, capsys: pytest.CaptureFixture[str], **options: bool) -> tuple[bool, list[str]]:
    capsys.readouterr()
    equal = diff(first, second, **options)
    printed = capsys.readouterr()
    assert printed.err == ""
    return equal, [line.rstrip() for line in printed.out.splitlines() if line]


def test_the_same_weights_are_equal_across_formats_and_layouts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parent = run.parent
    convert(run, parent / "hf", to="hf")
    convert(run, parent / "vllm", to="vllm", tensor_parallel_size=2)
    convert(run, parent / "training", to="training", tensor_parallel_size=4, pipeline_parallel_size=1)
    for name in ("hf", "vllm", "training"):
        equal, lines = compared(run, parent / name, capsys)
        assert equal
        assert lines[-1] == f"equal: {TENSORS} tensors, {TENSORS} equal bit for bit"
        assert lines[2:4] == ["model       the same", "step        300 in both"]
    assert diff(parent / "hf", parent / "vllm") and diff(parent / "vllm", parent / "training")
    first = f"first       {run}: mtnlg-training-checkpoint, float32, tensor 2 x pipeline 2 x data 1"
    second = f"second      {parent / 'training'}: mtnlg-training-checkpoint, float32, tensor 4 x pipeline 1 x data 1"
    assert lines[:2] == [first, second]


def test_a_cast_is_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(run, run.parent / "bf16", to="vllm", dtype="bfloat16", tensor_parallel_size=4)
    for pair in ((run, run.parent / "bf16"), (run.parent / "bf16", run)):
        equal, lines = compared(*pair, capsys)
        assert equal
        assert lines[-1] == f"equal: {TENSORS} tensors, {TENSORS} equal after casting to bfloat16"


def test_one_changed_element_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_gpt2(SMALL)
    weight = gpt2.transformer.state_dict()["h.1.attn.c_attn.weight"]
    before = weight[5, 70].item()
    weight[5, 70] += 0.5
    norm = 0.5 / run_norm(make_gpt2(SMALL), "h.1.attn.c_attn.weight")
    convert(written(run.parent / "other", gpt2, step=400), run.parent / "vllm", to="vllm", tensor_parallel_size=4)
    equal, lines = compared(run, run.parent / "vllm", capsys)
    assert not equal
    assert "step        300 and 400" in lines
    assert " ".join(lines[-3].split()) == "differing tensor largest relative elements that differ first of them"
    assert lines[-2].split() == [
        "layers.1.attention.query_key_value.weight",
        "0.5",
        f"{norm:.3g}",
        "1",
        "of",
        f"{96 * 32:,}",
        "[70,",
        "5]:",
        f"{before:.6g}",
        "and",
        f"{before + 0.5:.6g}",
    ]
    assert lines[-1] == f"different: {TENSORS} tensors, {TENSORS - 1} equal bit for bit, 1 different"


def run_norm(gpt2: Any, name: str) -> float:
    return float(gpt2.transformer.state_dict()[name].double().norm())


def test_the_worst_come_first_and_the_rest_is_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2 = make_gpt2(SMALL)
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter += 1e-3
        gpt2.transformer.h[0].ln_2.weight *= 9
        gpt2.transformer.h[1].ln_1.bias[3] = float("nan")
    other = written(run.parent / "other", gpt2, tensor_parallel_size=4)
    _, lines = compared(run, other, capsys)
    table = lines[5:]
    assert table[0].split()[:2] == ["layers.1.input_layernorm.bias", "nan"]
    assert table[1].startswith("layers.0.post_attention_layernorm.weight")
    assert table[-2:] == [
        f"... and {TENSORS - 20} more; --all lists them",
        f"different: {TENSORS} tensors, {TENSORS} different",
    ]
    assert len(table) == 22
    _, lines = compared(run, other, capsys, all_tensors=True)
    assert len(lines[5:]) == TENSORS + 1


def test_models_that_differ(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = SMALL.model_copy(update={"num_layers": 1, "vocab_size": 301})
    other = written(run.parent / "other", make_gpt2(model), model=model)
    equal, lines = compared(run, other, capsys)
    assert not equal
    assert "model       num_layers 2 and 1, vocab_size 300 and 301" in lines
    words = [line.split() for line in lines]
    assert ["word_embeddings.weight", "shape", "[300,", "32]", "and", "[301,", "32]"] in words
    assert ["layers.1.mlp.dense_4h_to_h.bias", "not", "in", "the", "second"] in words
    assert lines[-1].endswith("13 not in both")
    _, lines = compared(other, run, capsys)
    assert ["layers.1.mlp.dense_4h_to_h.bias", "not", "in", "the", "first"] in [line.split() for line in lines]


def test_the_optimizer_is_compared_where_both_have_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(run, run.parent / "one", to="training")
    convert(run.parent / "one", run.parent / "two", to="training", tensor_parallel_size=4, data_parallel_size=3)
    equal, lines = compared(run.parent / "one", run.parent / "two", capsys, optimizer=True)
    assert equal
    assert lines[-1] == f"equal: {4 * TENSORS} tensors, {4 * TENSORS} equal bit for bit"
    _, lines = compared(run.parent / "one", run, capsys, optimizer=True)
    assert "optimizer   not compared: no optimizer states in the second" in lines
    assert lines[-1] == f"equal: {TENSORS} tensors, {TENSORS} equal bit for bit"
    other = written(run.parent / "other", make_gpt2(SMALL, seed=1))
    convert(other, run.parent / "three", to="training")
    _, lines = compared(run.parent / "one", run.parent / "three", capsys, optimizer=True, all_tensors=True)
    # The moments are zero in both.
    assert lines[-1] == f"different: {4 * TENSORS} tensors, {2 * TENSORS} equal bit for bit, {2 * TENSORS} different"
    assert any(line.startswith("final_layernorm.bias (master) ") for line in lines)


def test_numbers_of_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conversion.diff._CHUNK", 4)
    first = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    second = first.clone()
    second[1, 0], second[1, 2] = -2.0, 1.0
    cast, found = compare_tensors(first, second)
    assert cast == "" and found is not None
    assert (found.largest, found.count, found.elements, found.index, found.values) == (2.0, 2, 6, (1, 0), (0.0, -2.0))
    assert found.relative == pytest.approx(math.sqrt(5) / 5)


def test_bits_are_compared_not_values() -> None:
    nan = torch.tensor([float("nan"), float("inf"), 1.0])
    assert compare_tensors(nan, nan.clone()) == ("", None)
    _, found = compare_tensors(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert found is not None and (found.count, found.largest) == (1, 0.0)
    _, found = compare_tensors(nan, torch.tensor([float("nan"), float("inf"), 1.5]))
    assert found is not None and (found.count, found.largest, found.index) == (1, 0.5, (2,))
    assert compare_tensors(torch.tensor([1 / 3]), torch.tensor([1 / 3], dtype=torch.float16)) == ("float16", None)
    cast, found = compare_tensors(torch.tensor([1.0]), torch.tensor([2.0], dtype=torch.bfloat16))
    assert cast == "bfloat16" and found is not None and found.largest == 1.0


def test_a_checkpoint_whose_replicas_differ_is_refused(run: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tests.conversion.training_checkpoint import commit

    step = run / "checkpoints" / "step-00000300"
    convert(run, run.parent / "hf", to="hf")
    path = step / "weights-stage-000-slice-001.safetensors"
    held = load_file(path)
    held["layers.0.mlp.dense_4h_to_h.bias"][0] += 1
    save_file(held, path)
    commit(step, SMALL, tensor_parallel_size=2, step=300, precision="fp32")
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.dense_4h_to_h\.bias differs between"):
        diff(run.parent / "hf", run)


def test_the_command_exits_with_0_or_1(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = written(run.parent / "other", make_gpt2(SMALL, seed=1))
    assert mtnlg_exit(monkeypatch, "checkpoint", "diff", run, run, "--optimizer") == 0
    assert mtnlg_exit(monkeypatch, "checkpoint", "diff", run, other, "--all") == 1
