"""Our scores against lm-eval's own model class on lm-eval's own tasks."""

from pathlib import Path
from typing import Any

import pytest

from evaluation.grid import Cell
from evaluation.task_set import load_tasks

OWN_TASK_FILES = {
    "boolq": "super_glue/boolq/default.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
}
SEED = 7


@pytest.fixture(scope="module")
def reference_model(model_folder: Path) -> Any:
    """lm-eval's HFLM around the tiny model."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(model_folder), batch_size=3)


def reference_samples(model: Any, task: str, shots: int, rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Samples of lm-eval's HFLM on lm-eval's task file, given the same raw rows."""
    import lm_eval.tasks
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.tasks.__file__).parent / OWN_TASK_FILES[task])
    config.pop("tag", None)
    splits = {split: Dataset.from_list(tasks[task]) for split, tasks in rows.items()}
    reference = ConfigurableTask(config={**config, "custom_dataset": lambda **_: splits, "num_fewshot": shots})
    reference.set_fewshot_seed(SEED)
    samples: list[dict[str, Any]] = evaluate(model, {"tasks": {task: reference}})["samples"][task]
    return samples


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("task", list(OWN_TASK_FILES))
def test_same_prompts_and_scores_as_lm_eval(
    task: str, shots: int, model_folder: Path, reference_model: Any, data_folder: Path, rows: dict[str, Any]
) -> None:
    from evaluation.hf_backend import HFBackend
    from evaluation.score_cell import score_cell

    ours_task = load_tasks([task], data_folder, [shots])[task]
    cell = Cell(task, shots, {})
    result, ours = score_cell(cell, ours_task, HFBackend(model_folder, "float32"), None, SEED, lambda count: None)
    reference = reference_samples(reference_model, task, shots, rows)

    assert len(ours) == len(reference) == 12
    for mine, theirs in zip(ours, reference, strict=True):
        prompts = [tuple(argument.values()) for argument in mine["arguments"].values()]
        assert prompts == [tuple(argument) for argument in theirs["arguments"]]
        for (our_logprob, our_greedy), (logprob, greedy) in zip(
            mine["filtered_resps"], theirs["filtered_resps"], strict=True
        ):
            assert our_logprob == pytest.approx(logprob, abs=1e-3)
            assert our_greedy == greedy
        assert {metric: mine[metric] for metric in theirs["metrics"]} == {
            metric: theirs[metric] for metric in theirs["metrics"]
        }
    if shots and task in {"boolq", "hellaswag"}:
        assert result.usage["contexts_cut"] > 0, "this case must also cover prompts that are too long"


def test_hellaswag_rows_are_cleaned_as_lm_eval_cleans_them(rows: dict[str, Any]) -> None:
    from datasets import Dataset
    from lm_eval.tasks.hellaswag.utils import process_docs

    from evaluation.rows import hellaswag_row

    raw = rows["validation"]["hellaswag"]
    reference = process_docs(Dataset.from_list(raw))
    for record, expected in zip(raw, reference, strict=True):
        assert hellaswag_row(record) == {key: expected[key] for key in ("query", "choices", "gold")}
