"""`convert --verify`: right conversions agree, a wrong one is caught."""

from pathlib import Path

import pytest
import torch

from conversion import hf, placement
from conversion.convert import Options
from conversion.convert import convert as convert_with
from foundation.errors import UserError
from tests.conversion.training_checkpoint import SMALL, make_gpt2, write_training_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL, tensor_parallel_size=2)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({"to": "hf"}, "transformers"),
        ({"to": "vllm", "tensor_parallel_size": 4}, "this project's layers"),
        ({"to": "training", "tensor_parallel_size": 4, "pipeline_parallel_size": 2}, "this project's layers"),
        ({"to": "megatron", "tensor_parallel_size": 2}, "this project's layers"),
    ],
    ids=lambda value: value["to"] if isinstance(value, dict) else "",
)
def test_both_sides_agree(run: Path, options: dict[str, object], by: str, capsys: pytest.CaptureFixture[str]) -> None:
    convert_with(run, run.parent / "out", Options(**options), verify=True)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert f"verified by {by}: largest logit difference" in said
    assert "68 of 68 greedy tokens the same" in said


def test_a_cast_is_reported_not_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert_with(run, run.parent / "out", Options("hf", dtype="bfloat16"), verify=True)
    assert "after a cast: largest logit difference" in capsys.readouterr().out


def test_rows_of_a_fused_projection_in_the_wrong_order_are_caught(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The right shape, the wrong rows, no error: what converters are known for.
    original = hf.place

    def confused(*arguments: object, **options: object) -> placement.Placement:
        return original(*arguments, **{**options, "qkv": placement.Order.HEADS})  # type: ignore[arg-type]

    monkeypatch.setattr(hf, "place", confused)
    with pytest.raises(UserError, match="computed by transformers, is not the same model: largest logit difference"):
        convert_with(run, run.parent / "out", Options("hf"), verify=True)


def test_an_output_that_is_there_is_verified_too(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert_with(run, run.parent / "out", Options("hf"))
    file = run.parent / "out" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-4 * SMALL.hidden_size :] = torch.full((SMALL.hidden_size,), 3.0).numpy().tobytes()
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"is not the same model|was changed"):
        convert_with(run, run.parent / "out", Options("hf"), verify=True)
