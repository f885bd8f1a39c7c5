"""Plans drawn from a configuration alone: sizes and copies, nothing read or written."""

import math
from pathlib import Path

import pytest

from conversion.convert import Options, convert, make_target
from conversion.open_source import open_source
from conversion.plan import Plan
from foundation.errors import UserError
from training.model.tensors import Slicing, tensor_table

PAPER = Path(__file__).parents[2] / "configs" / "train" / "mt-nlg-530b.yaml"


def plan(**options: object) -> Plan:
    source = open_source(PAPER)
    return Plan(source, make_target(source, Options(**options)).files)  # type: ignore[arg-type]


def test_the_paper_s_model_in_hugging_face_s_format_is_every_parameter_once() -> None:
    drawn = plan(to="hf")
    parameters = sum(math.prod(spec.shape) for spec in tensor_table(drawn.source.model))
    assert drawn.bytes_written == drawn.bytes_read == 2 * parameters
    assert round(parameters / 1e9, 1) == 529.6
    assert all(file.size <= 5e9 for file in drawn.files)


@pytest.mark.parametrize("size", [8, 16])
def test_the_paper_s_model_for_vllm(size: int) -> None:
    drawn = plan(to="vllm", tensor_parallel_size=size)
    table = tensor_table(drawn.source.model)
    replicated = sum(math.prod(spec.shape) for spec in table if spec.slicing is Slicing.REPLICATED)
    sliced = sum(math.prod(spec.shape) for spec in table) - replicated
    padding = (50304 - 50257) * drawn.source.model.hidden_size
    scales = 4 * drawn.source.model.num_layers * 4
    assert drawn.bytes_written == 2 * (sliced + padding + size * replicated) + size * scales
    assert drawn.bytes_read == 2 * (sliced + size * replicated)
    # At 8 slices as the run has them, so that only the vocabulary, padded otherwise, is put together anew.
    copies = [len(drawn.copies(tensor)) for file in drawn.files for tensor in file.tensors if tensor.spec]
    assert max(copies) == (2 if size == 8 else 3)
    assert drawn.peak_bytes < 1.5e9


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(PAPER, tmp_path / "out", Options("training", 4, 2, 2), dry_run=True)
    said = capsys.readouterr().out
    assert "tensor 8 x pipeline 35 x data 8, bfloat16" in said
    assert "training, bfloat16, tensor 4 x pipeline 2 x data 2" in said
    assert "writes         7.4 TB in 56 files" in said
    assert "layers.N.attention.query_key_value.weight (exp_avg)" in said
    assert not list(tmp_path.iterdir())


def test_a_configuration_alone_is_not_converted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a configuration: only --dry-run can plan from it"):
        convert(PAPER, tmp_path / "out", Options("hf"))
