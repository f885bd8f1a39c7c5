"""A training run as the model to serve: converted once, whoever asks, however it was interrupted."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conversion.cached import cached_conversion
from conversion.convert import Options, convert
from foundation.errors import UserError
from serving.model_folder import ParallelSizes, inspect_model
from tests.conversion.training_checkpoint import SMALL, make_gpt2, write_training_checkpoint
from tests.serving.running_server import ROOT

TWO_AT_ONCE = """
import sys
from pathlib import Path
from conversion.cached import cached_conversion
print(cached_conversion(Path(sys.argv[1]), "vllm", 2))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path / "cache"))
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL, tensor_parallel_size=2)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("inside", "name"), [("", "run"), ("checkpoints", "run"), ("checkpoints/step-00000300", "step-00000300")]
)
def test_a_run_is_converted_for_its_slices(run: Path, inside: str, name: str) -> None:
    model = inspect_model(run / inside, ParallelSizes(2))
    assert (model.name, model.tensor_parallel_size, model.sharded, model.dtype) == (name, 2, True, "float32")
    written = (model.path / "manifest.json").stat().st_mtime_ns
    assert inspect_model(run, ParallelSizes(2)).path == model.path
    assert (model.path / "manifest.json").stat().st_mtime_ns == written


def test_stages_and_quantisation_need_the_whole_model(run: Path) -> None:
    staged = inspect_model(run, ParallelSizes(2, pipeline=2, data=3))
    assert (staged.sharded, staged.tensor_parallel_size, staged.workers) == (False, 2, 12)
    assert inspect_model(run, ParallelSizes(), ["--quantization", "fp8"]).path == staged.path
    assert inspect_model(run, ParallelSizes()).sharded


def test_slices_have_no_stages(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "out", Options("vllm"))
    with pytest.raises(UserError, match=r"cannot be cut into 2 pipeline stages; .* mtnlg convert RUN OUT --to hf"):
        inspect_model(tmp_path / "out", ParallelSizes(pipeline=2))


def test_slices_that_do_not_divide_are_refused(run: Path) -> None:
    with pytest.raises(UserError, match="--tensor-parallel-size 3 does not divide the model's 4 attention heads"):
        inspect_model(run, ParallelSizes(3))


def test_a_run_without_a_finished_checkpoint(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints/step-00000300/manifest.json").unlink()
    with pytest.raises(UserError, match="step-00000300 was never committed"):
        inspect_model(run, ParallelSizes())
    (tmp_path / "new/checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match="new holds no finished checkpoint"):
        inspect_model(tmp_path / "new", ParallelSizes())


def test_a_checkpoint_without_a_tokenizer(run: Path) -> None:
    checkpoint = run / "checkpoints/step-00000300"
    shutil.rmtree(checkpoint / "tokenizer")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"] = {name: held for name, held in manifest["files"].items() if "tokenizer" not in name}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"has no tokenizer: .* --tokenizer FOLDER"):
        inspect_model(run, ParallelSizes())
    assert inspect_model(run, ParallelSizes(), ["--tokenizer=elsewhere"]).sharded


def test_two_processes_convert_once(run: Path) -> None:
    def ask(_: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", TWO_AT_ONCE, str(run)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, range(2)))
    assert len({answer.stdout for answer in answers}) == 1
    assert sum("converting" in answer.stderr and "once" in answer.stderr for answer in answers) == 1


def test_what_an_interrupted_conversion_or_a_cleaner_left_is_finished(run: Path) -> None:
    folder = cached_conversion(run, "vllm", 2)
    assert folder is not None
    whole = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    next(iter(folder.glob("*rank-1*"))).unlink()
    assert cached_conversion(run, "vllm", 2) == folder
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == whole
    # As a killed conversion leaves it: no folder of that name, and a part beside it.
    folder.rename(folder.with_name(f".{folder.name}.unfinished"))
    (folder.with_name(f".{folder.name}.unfinished") / "manifest.json").unlink()
    assert cached_conversion(run, "vllm", 2) == folder
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == whole


def test_a_checkpoint_that_the_run_removes_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object) -> None:
        shutil.rmtree(run / "checkpoints/step-00000300")
        raise FileNotFoundError

    monkeypatch.setattr("conversion.cached.convert", vanish)
    with pytest.raises(UserError, match="was removed while it was read"):
        cached_conversion(run, "hf")


def test_a_cache_that_cannot_be_written(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="MTNLG_CACHE"):
        cached_conversion(run, "hf")
