"""A whole evaluation: the grid, what it writes, resuming, refusals."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.run import evaluate
from evaluation.task_set import TASK_FOLDER
from foundation.errors import UserError
from foundation.manifest import write_manifest
from tests.evaluation.conftest import MakeModel

TASKS = ["boolq", "winogrande"]
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def run(model_folder: Path, data_folder: Path, tmp_path: Path) -> Evaluate:
    """Evaluate two tasks at 0 and 2 shots into `tmp_path`/out, with changes."""

    def run_with(model: Path = model_folder, **changes: Any) -> dict[str, Any]:
        arguments = {"tasks": TASKS, "shots": [0, 2], "limit": 5, "data": data_folder, "out": tmp_path / "out"}
        return evaluate(model, **{**arguments, **changes})

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
    assert document["settings"] == {"limit": 5, "backend": "hf", "dtype": "float32", "seed": 1234}
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
    assert usage["boolq", 0]["tokens_computed"] <= usage["boolq", 0]["tokens_asked"] / 2
    assert usage["boolq", 2]["contexts_cut"] > 0


def test_second_run_reuses_every_cell(run: Evaluate, tmp_path: Path) -> None:
    first, times = run(), cell_times(tmp_path / "out")
    assert run() == first
    assert cell_times(tmp_path / "out") == times


def test_killed_run_resumes_with_equal_results(run: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluation.hf_backend import HFBackend

    whole = accuracies(run(out=tmp_path / "whole"))
    score, calls = HFBackend.score, []

    def killed_in_third_cell(self: HFBackend, requests: Any) -> Iterator[Any]:
        calls.append(len(requests))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(self, requests)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(HFBackend, "score", killed_in_third_cell)
        run()
    times = cell_times(tmp_path / "out")
    assert set(times) == {"boolq-0shot", "boolq-2shot"}
    assert not (tmp_path / "out/results.json").exists()
    assert accuracies(run()) == whole
    assert times.items() <= cell_times(tmp_path / "out").items()


@pytest.mark.parametrize("changes", [{"seed": 7}, {"limit": 6}, {"dtype": "bfloat16"}])
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


def test_table_has_our_figures_beside_the_published(run: Evaluate, tmp_path: Path, capsys: Any) -> None:
    document = run()
    table = (tmp_path / "out/table.md").read_text()
    header, _, boolq, winogrande = [line.strip("| ").split(" | ") for line in table.splitlines()[:4]]
    assert header == [
        "task",
        "0-shot",
        "2-shot",
        *[f"MT-NLG 530B {column}" for column in ("0-shot", "1-shot", "few-shot")],
    ]
    for line, task in ((boolq, "boolq"), (winogrande, "winogrande")):
        for column, shots in ((1, "0"), (2, "2")):
            found = document["runs"][shots]["results"][task]
            assert line[column] == f"{100 * found['acc,none']:.1f}±{100 * found['acc_stderr,none']:.1f}"
    assert boolq[3:] == ["78.2", "82.5", "84.8 (32)"]
    assert winogrande[3:] == ["73.0", "73.7", "78.9 (?)"]
    assert "boolq at 2 shots: " in table, "prompts that were cut must be named"
    printed = capsys.readouterr().out
    assert boolq[1] in printed
    assert "84.8 (32)" in printed
    assert "boolq at 2 shots: " in printed
    assert str(tmp_path / "out/results.json") in printed


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
    assert sorted(found["results"]) == names == ["boolq", "hellaswag", "piqa", "winogrande"]
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
    with pytest.raises(UserError, match="there are: boolq, hellaswag, piqa, winogrande"):
        run(tasks=["xyz"])
    with pytest.raises(UserError, match="no task named"):
        run(tasks=[])


def test_folders_that_are_no_model_are_refused(run: Evaluate, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model folder at .*nowhere"):
        run(tmp_path / "nowhere")
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(UserError, match=r"has no config\.json; .*mtnlg convert RUN OUT --to hf"):
        run(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"could not be loaded"):
        run(folder)
    write_manifest(folder, "mtnlg-vllm-sharded", {}, [folder / "config.json"])
    with pytest.raises(UserError, match=r"resharded for vLLM; .*--to hf"):
        run(folder)


def test_shots_beyond_the_training_rows_are_refused(run: Evaluate) -> None:
    with pytest.raises(UserError, match=r"9 shots of boolq need more than the 9 training rows"):
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
        options = ["--shots", "0,1", "--limit", "3", "--data", str(data_folder), "--out", str(tmp_path)]
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert callers == []
    assert "piqa-1shot: acc" in done.stdout
    assert re.search(r"winogrande +[\d.]+±[\d.]+ +[\d.]+±[\d.]+ +73\.0 +73\.7 +78\.9 \(\?\)", done.stdout)
    # Neither the libraries' progress bars nor their log lines.
    assert not re.search(r"it/s|WARNING|INFO", done.stderr)
