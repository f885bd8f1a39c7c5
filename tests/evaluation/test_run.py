"""A whole evaluation: the grid, what it writes, resuming, refusals."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.backends.choice import BackendChoice
from evaluation.run import Settings, evaluate, rescore
from evaluation.suites import suite_table
from evaluation.table import table_of
from evaluation.task_set import TASK_FOLDER
from foundation.errors import UserError
from foundation.manifest import write_manifest
from tests.evaluation.conftest import MakeModel

TASKS = ["boolq", "winogrande"]
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def run(model_folder: Path, data_folder: Path, tmp_path: Path) -> Evaluate:
    """Evaluate two tasks at 0 and 2 shots into `tmp_path`/out, with changes."""

    def run_with(
        model: Path | str = model_folder,
        tasks: Sequence[str] = TASKS,
        shots: Sequence[int] = (0, 2),
        dtype: str = "float32",
        out: Path = tmp_path / "out",
        **changes: Any,
    ) -> dict[str, Any]:
        settings = Settings(**{"limit": 5, "data": data_folder, **changes})
        return evaluate(str(model), table_of(tasks, shots), settings, BackendChoice("hf", dtype), out=out)

    return run_with


def cell_times(out: Path) -> dict[str, int]:
    """When each cell was last written, in ns."""
    return {path.stem: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}


def accuracies(document: dict[str, Any]) -> dict[str, Any]:
    return {shots: run["results"] for shots, run in document["runs"].items()}


def test_results_tell_what_was_measured_and_how(run: Evaluate, tmp_path: Path) -> None:
    document = run()
    assert document == json.loads((tmp_path / "out/results.json").read_text())
    at_two_shots = document["runs"]["2"]
    assert set(at_two_shots["results"]) == set(TASKS)
    assert at_two_shots["n-shot"] == {"boolq": 2, "winogrande": 2}
    assert at_two_shots["n-samples"]["boolq"] == {"original": 12, "effective": 5}
    assert at_two_shots["configs"]["boolq"]["doc_to_text"] == "{{passage}}\nQuestion: {{question}}?\nAnswer:"
    assert document["settings"] == {
        "limit": 5,
        "backend": "hf",
        "dtype": "float32",
        "seeds": [1234],
        "examples": "fixed",
        "fit_examples": False,
    }
    assert set(document["environment"]["libraries"]) >= {"torch", "transformers", "lm-eval"}
    source = document["data"]["boolq"]["validation"]
    assert source["kind"] == "folder"
    assert re.fullmatch(r"[0-9a-f]{64}", source["files"]["boolq/validation.jsonl.gz"])

    samples = [json.loads(line) for line in (tmp_path / "out/samples/boolq-2shot.jsonl").read_text().splitlines()]
    assert [sample["doc_id"] for sample in samples] == [0, 1, 2, 3, 4]
    mean = sum(sample["acc"] for sample in samples) / 5
    assert at_two_shots["results"]["boolq"]["acc,none"] == pytest.approx(mean)
    usage = {(cell["task"], cell["shots"]): cell["usage"] for cell in document["cells"]}
    assert usage["boolq", 0]["requests"] == 10
    # Yes and no are one token each, after the same context.
    assert usage["boolq", 0]["tokens_computed"] < 0.6 * usage["boolq", 0]["tokens_asked"]
    assert usage["boolq", 2]["contexts_cut"] > 0


def test_second_run_reuses_every_cell(run: Evaluate, tmp_path: Path) -> None:
    first, times = run(), cell_times(tmp_path / "out")
    assert run() == first
    assert cell_times(tmp_path / "out") == times


def test_killed_run_resumes_behind_the_last_batch(
    run: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluation.backends.hf_backend import HFBackend

    whole = accuracies(run(out=tmp_path / "whole"))
    score, asked = HFBackend.score, []

    def killed_within_the_second_cell(self: HFBackend, requests: Any) -> Iterator[Any]:
        asked.append(len(requests))
        for number, request in enumerate(requests):
            (batch,) = score(self, [request])
            yield replace(batch, scores={number: batch.scores[0]})
            if len(asked) == 2 and number == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HFBackend, "score", killed_within_the_second_cell)
        run()
    times = cell_times(tmp_path / "out")
    assert set(times) == {"boolq-0shot"}
    assert not (tmp_path / "out/results.json").exists()

    def counted(self: HFBackend, requests: Any) -> Iterator[Any]:
        asked.append(len(requests))
        return score(self, requests)

    monkeypatch.setattr(HFBackend, "score", counted)
    assert accuracies(run()) == whole
    assert times.items() <= cell_times(tmp_path / "out").items()
    second = asked[1]
    assert asked[2] == second - 4, "what was scored before the kill is not asked again"


def test_more_documents_go_on_where_fewer_ended(run: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluation.backends.hf_backend import HFBackend

    run(tasks=["piqa"], shots=[0])
    score, asked = HFBackend.score, []

    def counted(self: HFBackend, requests: Any) -> Iterator[Any]:
        asked.extend(requests)
        return score(self, requests)

    monkeypatch.setattr(HFBackend, "score", counted)
    run(tasks=["piqa"], shots=[0], limit=8)
    assert len(asked) == 3 * 2


def test_rescoring_needs_no_model(run: Evaluate, tmp_path: Path, data_folder: Path, make_model: MakeModel) -> None:
    model = tmp_path / "model"
    shutil.copytree(make_model(), model)
    first = run(model, fit_examples=True)
    shutil.rmtree(model)
    for cell in (tmp_path / "out/cells").iterdir():
        cell.unlink()
    assert rescore(tmp_path / "out", data_folder) == first
    next((tmp_path / "out/scores").glob("boolq-2*")).unlink()
    for cell in (tmp_path / "out/cells").iterdir():
        cell.unlink()
    with pytest.raises(UserError, match="lacks scores for these prompts"):
        rescore(tmp_path / "out", data_folder)


def test_short_contexts_get_fewer_examples_instead_of_cut_prompts(
    run: Evaluate, make_model: MakeModel, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(make_model(positions=192), tasks=["boolq"], shots=[6], fit_examples=True)
    (cell,) = document["cells"]
    assert 0 < cell["examples"] < 6
    assert cell["usage"]["contexts_cut"] == 0
    assert f"({cell['examples']} of 6)" in capsys.readouterr().out


def test_seeds_are_cells_of_their_own(run: Evaluate) -> None:
    document = run(tasks=["piqa"], seeds=(1, 2))
    assert [(cell["shots"], cell["seed"]) for cell in document["cells"]] == [(0, 1), (2, 1), (2, 2)]
    assert set(document["runs"]) == {"0", "2-seed1", "2-seed2"}
    prompts = [cell["prompts_sha256"] for cell in document["cells"]]
    assert len(set(prompts)) == 3


def test_per_document_examples_differ_from_fixed_ones(run: Evaluate, tmp_path: Path) -> None:
    def examples(fixed: bool) -> set[str]:
        out = tmp_path / str(fixed)
        run(tasks=["piqa"], shots=[2], fixed_examples=fixed, out=out)
        lines = (out / "samples/piqa-2shot.jsonl").read_text().split("\n")[:-1]
        prompts = [json.loads(line)["arguments"]["gen_args_0"]["arg_0"] for line in lines]
        return {prompt.rpartition("Question:")[0] for prompt in prompts}

    assert len(examples(fixed=True)) == 1
    assert len(examples(fixed=False)) > 1


@pytest.mark.parametrize("changes", [{"seeds": (7,)}, {"limit": 6}, {"dtype": "bfloat16"}])
def test_other_settings_reuse_nothing(run: Evaluate, tmp_path: Path, changes: dict[str, Any]) -> None:
    run()
    times = cell_times(tmp_path / "out")
    run(**changes)
    assert all(now > times[cell] for cell, now in cell_times(tmp_path / "out").items())


def test_other_model_and_other_data_reuse_nothing(
    run: Evaluate, tmp_path: Path, make_model: MakeModel, data_folder: Path
) -> None:
    keys = [cell["key"] for cell in run(shots=[0])["cells"]]
    other_model = run(make_model(seed=1), shots=[0])
    swapped = tmp_path / "swapped"
    for task, split in (("boolq", "train"), ("winogrande", "train")):
        (swapped / task).mkdir(parents=True)
        (swapped / task / "validation.jsonl.gz").symlink_to(data_folder / task / f"{split}.jsonl.gz")
    other_data = run(data=swapped, shots=[0])
    for document in (other_model, other_data):
        assert not set(keys) & {cell["key"] for cell in document["cells"]}


def test_damaged_samples_are_scored_again(run: Evaluate, tmp_path: Path) -> None:
    first = run(shots=[0])
    samples = tmp_path / "out/samples/boolq-0shot.jsonl"
    content = samples.read_text()
    samples.write_text(content[:100])
    assert accuracies(run(shots=[0])) == accuracies(first)
    assert samples.read_text() == content


def test_tables_and_terminal_have_the_figures_and_what_to_know_of_them(
    run: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run()
    printed = capsys.readouterr().out
    table = (tmp_path / "out/table.md").read_text()
    for cell in document["cells"]:
        scores = [json.loads(line)["acc"] for line in sample_lines(tmp_path / "out", cell)]
        assert cell["accuracy"]["value"] == pytest.approx(sum(scores) / 5)
        assert cell["accuracy"]["low"] <= cell["accuracy"]["value"] <= cell["accuracy"]["high"]
        assert f"{100 * cell['accuracy']['value']:.1f}" in table
        assert f"{100 * cell['accuracy']['value']:.1f}" in printed
    assert "78.2" in table
    assert "BoolQ at 2 shots: " in printed
    for name in ("table.md", "table.csv", "table.tex", "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 200
        assert str(tmp_path / "out" / name) in printed


def sample_lines(out: Path, cell: dict[str, Any]) -> list[str]:
    return (out / f"samples/{cell['task']}-{cell['shots']}shot.jsonl").read_text().split("\n")[:-1]


def test_task_files_run_in_plain_lm_eval(data_folder: Path) -> None:
    from lm_eval.evaluator import evaluate as evaluate_plainly
    from lm_eval.models.dummy import DummyLM
    from lm_eval.tasks import TaskManager

    metadata = {"data": str(data_folder)}
    manager = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, metadata=metadata)
    names = sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))
    loaded = manager.load(names)
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=1)
    found = evaluate_plainly(DummyLM(), loaded, limit=2)
    assert sorted(found["results"]) == names
    assert set(suite_table("mt-nlg").tasks) <= set(names)
    assert {count["effective"] for count in found["n-samples"].values()} == {2}


def test_manifest_identifies_the_model(run: Evaluate, make_model: MakeModel) -> None:
    folder = make_model()
    write_manifest(folder, "mtnlg-hf", {"step": 300}, [path for path in folder.iterdir() if path.is_file()])
    described = run(folder, tasks=["piqa"], shots=[0])["model"]
    assert described["about"] == {"step": 300}
    assert described["manifest_sha256"]
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json has 2 bytes instead of .*: convert the model again"):
        run(folder)


def test_unknown_task_gets_near_names(run: Evaluate) -> None:
    with pytest.raises(UserError, match="no task called 'hellaswg'; did you mean hellaswag"):
        run(tasks=["hellaswg"])
    with pytest.raises(UserError, match=r"there are: anli_r2, arithmetic_addition, .*, winogrande"):
        run(tasks=["xyz"])
    with pytest.raises(UserError, match="no task named"):
        run(tasks=[])


def test_folders_that_are_no_model_are_refused(run: Evaluate, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model folder at .*nowhere"):
        run(tmp_path / "nowhere")
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(UserError, match=r"has no config\.json, nor a training run"):
        run(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"could not be loaded"):
        run(folder)
    write_manifest(folder, "mtnlg-vllm-sharded", {}, [folder / "config.json"])
    with pytest.raises(UserError, match=r"resharded for vLLM; .*--to hf"):
        run(folder)


def test_shots_beyond_the_training_rows_are_refused(run: Evaluate) -> None:
    with pytest.raises(UserError, match=r"9 shots of boolq need more than the 9 rows that it has for examples"):
        run(shots=[0, 9])


def test_model_too_short_for_an_answer_is_refused(run: Evaluate, make_model: MakeModel) -> None:
    with pytest.raises(UserError, match=r"hellaswag at 0 shots: the answer .* more than the model's context of 4"):
        run(make_model(positions=4), tasks=["hellaswag"], shots=[0])


def test_importing_the_room_is_light() -> None:
    heavy = "import sys, evaluation.run; print([m for m in ('torch', 'lm_eval', 'datasets') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_command_asks_nothing_of_the_hub_when_given_data(model_folder: Path, data_folder: Path, tmp_path: Path) -> None:
    callers = []
    with socket.create_server(("127.0.0.1", 0)) as hub:

        def count() -> None:
            while True:
                try:
                    connection, address = hub.accept()
                except OSError:
                    return
                callers.append(address)
                connection.close()

        threading.Thread(target=count, daemon=True).start()
        environment = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "COLUMNS": "80"}
        environment.pop("HF_HUB_OFFLINE")
        command = [sys.executable, "-m", "mtnlg", "evaluate", str(model_folder), "--tasks", "piqa,winogrande"]
        options = [
            "--shots",
            "0,1",
            "--limit",
            "3",
            "--backend",
            "hf",
            "--data",
            str(data_folder),
            "--out",
            str(tmp_path),
        ]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert callers == []
    assert "piqa-1shot: " in done.stdout
    assert "WinoGrande" in done.stdout or "winogrande" in done.stdout
    # Neither the libraries' progress bars nor their log lines.
    assert not re.search(r"it/s|WARNING|INFO", done.stderr)
