"""Our task files and scores against lm-eval's own model class on lm-eval's own tasks."""

from pathlib import Path
from typing import Any

import pytest

from evaluation.task_set import TASK_FOLDER

OWN_TASK_FILES = {
    "lambada": "lambada/lambada_openai.yaml",
    "lambada_cloze": "lambada_cloze/lambada_openai_cloze.yaml",
    "race_h_last": "race/race.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "piqa": "piqa/piqa.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "anli_r2": "anli/anli_r2.yaml",
    "wic": "super_glue/wic/default.yaml",
}
# What differs from lm-eval on purpose, with examples only: never the question itself as its own example, and one space
# before LAMBADA's answers in examples, as there is before the one that is scored.
OTHERWISE = {
    "lambada": {"fewshot_split": "test", "target_delimiter": ""},
    "lambada_cloze": {"fewshot_split": "test", "target_delimiter": ""},
    "race_h_last": {"fewshot_split": "test"},
}
SEED = 7


@pytest.fixture(scope="module")
def reference_model(model_folder: Path) -> Any:
    """lm-eval's HFLM around the tiny model."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(model_folder), batch_size=3)


def own_records(task: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as lm-eval's own task takes them: RACE's are one an article, with its questions as Python source."""
    if task != "race_h_last":
        return records
    articles: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        problem = {field: record[field] for field in ("question", "answer", "options")}
        articles.setdefault(record["article"], []).append(problem)
    return [
        {"example_id": str(number), "article": article, "problems": str(problems)}
        for number, (article, problems) in enumerate(articles.items())
    ]


def own_task(task: str, shots: int, rows: dict[str, Any]) -> Any:
    """lm-eval's own task over the same raw rows."""
    import lm_eval.tasks
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(lm_eval.tasks.__file__).parent / OWN_TASK_FILES[task])
    config.pop("tag", None)
    asked, examples = (Dataset.from_list(own_records(task, rows[split][task])) for split in ("validation", "train"))
    splits = dict.fromkeys(("validation", "dev_r2", "test", "test_r2"), asked) | dict.fromkeys(
        ("train", "train_r2"), examples
    )
    changed = OTHERWISE.get(task, {}) if shots else {}
    return ConfigurableTask(config={**config, **changed, "custom_dataset": lambda **_: splits, "num_fewshot": shots})


def our_task(task: str, shots: int, folder: Path | None) -> Any:
    """The task file as plain lm-eval loads it."""
    from lm_eval.tasks import TaskManager

    metadata = {"data": str(folder)} if folder else {}
    manager = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, metadata=metadata)
    loaded = manager.load([task])["tasks"][task]
    loaded.set_config(key="num_fewshot", value=shots)
    return loaded


def samples_of(model: Any, task: Any) -> list[dict[str, Any]]:
    """What lm-eval's evaluator records, a sample a document."""
    from lm_eval.evaluator import evaluate

    task.set_fewshot_seed(SEED)
    # No bootstrap: LAMBADA's perplexity would take minutes for its standard error.
    samples: list[dict[str, Any]] = evaluate(model, {"tasks": {"it": task}}, bootstrap_iters=0)["samples"]["it"]
    return samples


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("task", list(OWN_TASK_FILES))
def test_same_prompts_and_scores_as_lm_eval(
    task: str, shots: int, model_folder: Path, reference_model: Any, data_folder: Path, rows: Any, tmp_path: Path
) -> None:
    from evaluation.backends.hf_backend import HFBackend
    from evaluation.score_store import ScoreStore
    from evaluation.scoring import ScoringLM

    with ScoreStore(tmp_path / "scores.jsonl", {}) as store:
        model = ScoringLM(lambda: HFBackend(model_folder, "float32"), store, lambda count: None)
        ours = samples_of(model, our_task(task, shots, data_folder))
    reference = samples_of(reference_model, own_task(task, shots, rows))

    assert len(ours) == len(reference) == len(own_records(task, rows["validation"][task])) > 4
    for mine, theirs in zip(ours, reference, strict=True):
        assert [tuple(argument) for argument in mine["arguments"]] == [tuple(each) for each in theirs["arguments"]]
        assert mine["target"] == theirs["target"]
        for (our_logprob, our_greedy), (logprob, greedy) in zip(
            mine["filtered_resps"], theirs["filtered_resps"], strict=True
        ):
            assert our_logprob == pytest.approx(logprob, abs=1e-3)
            assert our_greedy == greedy
        assert "acc" in mine["metrics"]
        assert {metric: mine[metric] for metric in mine["metrics"]} == {
            metric: theirs[metric] for metric in mine["metrics"]
        }
    if shots and task in {"boolq", "hellaswag"}:
        assert model.usage.contexts_cut > 0, "this case must also cover prompts that are too long"


def test_metrics_are_those_of_lm_eval_but_for_perplexity(data_folder: Path, rows: dict[str, Any]) -> None:
    for task in OWN_TASK_FILES:
        ours, own = our_task(task, 0, data_folder), own_task(task, 0, rows)
        assert set(ours.aggregation()) == set(own.aggregation()) - {"perplexity"}, task


def test_hellaswag_rows_are_cleaned_as_lm_eval_cleans_them(rows: dict[str, Any]) -> None:
    from datasets import Dataset
    from lm_eval.tasks.hellaswag.utils import process_docs

    from evaluation.rows import hellaswag_row

    raw = rows["validation"]["hellaswag"]
    reference = process_docs(Dataset.from_list(raw))
    for record, expected in zip(raw, reference, strict=True):
        assert hellaswag_row(record) == {key: expected[key] for key in ("query", "choices", "gold")}
