"""Evaluation through a running server gives the table that the engine in evaluation's own process gives."""

import json
import shutil
from pathlib import Path

import pytest

from evaluation.backends.choice import BackendChoice
from evaluation.backends.http_backend import HTTPBackend
from evaluation.run import Settings, evaluate
from evaluation.table import table_of
from foundation.errors import UserError
from serving.keys import add_key
from tests.evaluation.conftest import MakeModel, data_folder, make_model, rows  # noqa: F401 - fixtures
from tests.serving.running_server import RunningServer, running_server

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

TASKS = ["piqa", "lambada"]


@pytest.fixture
def folder(make_model: MakeModel, tmp_path: Path) -> Path:  # noqa: F811
    """A GPT-2 whose context holds every prompt whole, with attention heads that vLLM's CPU kernels know."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "model"
    torch.manual_seed(3)
    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=512, initializer_range=0.2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(make_model() / name, folder)
    return folder


def test_the_same_table_through_the_server(
    folder: Path,
    data_folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, settings = table_of(TASKS, [0, 1]), Settings(None, data=data_folder)
    evaluate(str(folder), table, settings, BackendChoice("vllm"), out=tmp_path / "inside")
    keys = tmp_path / "keys.json"
    secret = add_key(keys, "evaluation")
    with running_server(str(folder), "--keys", str(keys)) as server:
        choice = BackendChoice("http", server={"api_key": secret, "tokenizer": folder})
        evaluate(server.url, table, settings, choice, out=tmp_path / "through")
        assert_alike(tmp_path / "inside", tmp_path / "through")
        monkeypatch.setattr(HTTPBackend, "_offers_score_route", lambda backend: False)
        evaluate(server.url, table, settings, choice, out=tmp_path / "echoed")
        assert_alike(tmp_path / "inside", tmp_path / "echoed")
        assert_asked(server)
        with pytest.raises(UserError, match="401"):
            evaluate(server.url, table, settings, BackendChoice("http"), out=tmp_path / "refused")


def assert_alike(inside: Path, other: Path) -> None:
    """The same cells, accuracies, and log-likelihoods of every request."""
    mine, theirs = (json.loads((folder / "results.json").read_text())["cells"] for folder in (inside, other))
    asked = ("task", "shots", "seed", "examples", "accuracy", "prompts_sha256")
    assert [[cell[name] for name in asked] for cell in mine] == [[cell[name] for name in asked] for cell in theirs]
    assert len(mine) == 2 * len(TASKS)
    for file in (inside / "scores").iterdir():
        expected, found = scores(file), scores(other / "scores" / file.name)
        assert len(expected) >= 12
        assert {key: held[1] for key, held in found.items()} == {key: held[1] for key, held in expected.items()}
        for key, (logprob, _) in expected.items():
            assert found[key][0] == pytest.approx(logprob, abs=1e-3)


def scores(file: Path) -> dict[str, tuple[float, bool]]:
    """Log-likelihoods, and whether greedy, by request."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return {line["request"]: (line["logprob"], line["is_greedy"]) for line in lines}


def assert_asked(server: RunningServer) -> None:
    """Both routes were used."""
    text = "".join(server.output)
    assert "/v1/score" in text
    assert "/v1/completions" in text
