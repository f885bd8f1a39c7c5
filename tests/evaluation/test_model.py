"""What may be named as a model: folders, training runs, servers."""

import json
from pathlib import Path

import pytest

from evaluation.backends.choice import BackendChoice
from evaluation.model import find_model
from foundation.errors import UserError
from tests.conversion.training_checkpoint import SMALL, make_gpt2, write_training_checkpoint

HF = BackendChoice("hf")


@pytest.fixture
def training_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path / "cache"))
    write_training_checkpoint(tmp_path / "run", make_gpt2(SMALL), SMALL, tensor_parallel_size=2)
    return tmp_path / "run"


def test_training_run_is_converted_once(training_run: Path) -> None:
    found = find_model(str(training_run), HF)
    folder = Path(found.location)
    assert json.loads((folder / "config.json").read_text())["n_layer"] == SMALL.num_layers
    assert found.identity["path"] == str(training_run)
    assert found.identity["about"]["step"] == 300
    assert found.default_results() == training_run / "evaluation"
    written = (folder / "manifest.json").stat().st_mtime_ns
    assert find_model(str(training_run), HF) == found
    assert (folder / "manifest.json").stat().st_mtime_ns == written


def test_another_checkpoint_is_another_model(training_run: Path) -> None:
    first = find_model(str(training_run), HF)
    write_training_checkpoint(training_run, make_gpt2(SMALL, seed=1), SMALL, step=301)
    second = find_model(str(training_run), HF)
    assert second.location != first.location
    assert second.identity["files_sha256"] != first.identity["files_sha256"]


def test_uncommitted_checkpoint_is_refused(training_run: Path) -> None:
    (training_run / "checkpoints/step-00000300/manifest.json").unlink()
    with pytest.raises(UserError, match=r"step-00000300 was never committed"):
        find_model(str(training_run), HF)


def test_servers_are_for_the_backend_http() -> None:
    url = "http://127.0.0.1:9"
    found = find_model(url, BackendChoice("http", server={"model": "a"}))
    assert found.location == url
    assert found.identity["files_sha256"] != find_model(url, BackendChoice("http")).identity["files_sha256"]
    assert found.identity["path"] == url
    secret = find_model("http://me:secret@127.0.0.1:9", BackendChoice("http", server={"model": "a"}))
    assert secret.location == "http://me:secret@127.0.0.1:9"
    assert secret.identity == found.identity
    with pytest.raises(UserError, match="say with --out"):
        found.default_results()
    with pytest.raises(UserError, match="add --backend http"):
        find_model(url, HF)
    with pytest.raises(UserError, match="runs/demo is no URL"):
        find_model("runs/demo", BackendChoice("http"))
