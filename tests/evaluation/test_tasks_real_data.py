"""The real files, where they are beside the repository."""

import hashlib
import json
from pathlib import Path

import pytest

from evaluation.sources import open_task_data

BENCHMARKS = Path(__file__).resolve().parents[3] / "shared" / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=f"no benchmark files at {BENCHMARKS}")


@pytest.mark.parametrize(
    ("task", "split", "count", "notes"),
    [
        ("lambada", "test", 5153, []),
        ("boolq", "validation", 3270, []),
        ("piqa", "validation", 1838, []),
        ("hellaswag", "validation", 10042, []),
        ("hellaswag", "train", 10000, ["10,000 train rows, not the official 39,905"]),
        ("winogrande", "validation", 1267, []),
        ("anli_r2", "test", 1000, []),
        ("wic", "validation", 638, []),
        ("wic", "train", 5428, []),
        ("race_h", "test", 500, ["a sample of RACE-h questions whose split is not known, not the test set"]),
        ("race_h_last", "test", 500, ["a sample of RACE-h questions whose split is not known, not the test set"]),
    ],
)
def test_row_counts_and_notes(task: str, split: str, count: int, notes: list[str]) -> None:
    dataset = open_task_data(task, str(BENCHMARKS))
    assert len(dataset[split]) == count
    assert dataset.sources[split].notes == notes


@pytest.mark.parametrize(
    ("split", "count", "note"), [("validation", 30000, "not the official"), ("train", 29073, "drawn anew")]
)
def test_another_draw_of_hans_is_named_as_such(split: str, count: int, note: str) -> None:
    dataset = open_task_data("hans", str(BENCHMARKS))
    assert len(dataset[split]) == count
    assert [note in found for found in dataset.sources[split].notes] == [True]


def test_hans_is_balanced_and_has_no_stray_punctuation_when_posed() -> None:
    from evaluation.tasks.hans import question

    rows = list(open_task_data("hans", str(BENCHMARKS))["validation"])
    assert sum(row["label"] for row in rows) == len(rows) // 2
    assert len({row["subcase"] for row in rows}) == 30
    prompts = [question(row) for row in rows]
    assert not [prompt for prompt in prompts if " ." in prompt or " ," in prompt]
    assert all(prompt.endswith(". True or False?\nAnswer:") for prompt in prompts)


def test_lambada_is_the_file_that_came_with_gpt2() -> None:
    rows = open_task_data("lambada", str(BENCHMARKS))["test"]
    original = "".join(json.dumps({"text": row["text"]}) + "\n" for row in rows)
    digest = "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
    assert hashlib.sha256(original.encode()).hexdigest() == digest
