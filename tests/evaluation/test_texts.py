"""The tasks' texts for decontamination: which fields, which rows, and what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluation.sources.catalogue import TASK_DATA
from evaluation.texts import write_texts
from foundation.errors import UserError
from mtnlg import app
from tests.evaluation.conftest import write_rows


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def texts_of(path: Path, task: str, field: str) -> list[str]:
    return [line["text"] for line in lines(path) if (line["task"], line["field"]) == (task, field)]


def test_every_task_with_documents_gives_its_asked_texts(
    tmp_path: Path, data_folder: Path, rows: dict[str, Any]
) -> None:
    out = tmp_path / "deeper" / "texts.jsonl"
    written = write_texts(out, data=data_folder)
    assert written["missing"] == {}
    tasks = [
        task for task in TASK_DATA if not task.startswith("arithmetic") and task not in ("lambada_cloze", "race_h_last")
    ]
    assert sorted(written["texts"]) == sorted(tasks)
    asked = rows["validation"]
    assert texts_of(out, "boolq", "passage") == list(dict.fromkeys(row["passage"] for row in asked["boolq"]))
    assert texts_of(out, "lambada", "text") == list(dict.fromkeys(row["text"] for row in asked["lambada"]))
    for row in asked["piqa"]:
        assert row["goal"] in texts_of(out, "piqa", "goal")
        assert row["sol2" if row["label"] else "sol1"] in texts_of(out, "piqa", "solution")
    sentences = [row["sentence"].replace("_", row[f"option{row['answer']}"]) for row in asked["winogrande"]]
    assert texts_of(out, "winogrande", "sentence") == list(dict.fromkeys(sentences))
    race = asked["race_h"][0]
    assert race["article"] in texts_of(out, "race_h", "article")
    assert race["options"]["ABCD".index(race["answer"])] in texts_of(out, "race_h", "answer")
    (story,) = [
        t for t in texts_of(out, "hellaswag", "query") if asked["hellaswag"][0]["ctx_a"].split(" [title]")[0] in t
    ][:1]
    assert story.startswith("Building bridges")
    assert len(lines(out)) == sum(written["texts"].values())
    assert len({tuple(line.values()) for line in lines(out)}) == len(lines(out))


def test_two_forms_of_the_same_rows_are_one(tmp_path: Path, data_folder: Path) -> None:
    written = write_texts(tmp_path / "texts.jsonl", ["race_h_last", "race_h", "lambada_cloze"], data_folder)
    assert list(written["texts"]) == ["race_h", "lambada"]


def test_what_is_not_at_hand_is_named_and_an_error_where_it_was_asked_for(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "wic" / "validation.jsonl.gz", [])
    with pytest.raises(UserError, match="lacks boolq"):
        write_texts(tmp_path / "texts.jsonl", ["boolq"], tmp_path / "data")
    with pytest.raises(UserError, match=r"lacks lambada.*lacks race"):
        write_texts(tmp_path / "texts.jsonl", data=tmp_path / "data")
    record = {"sentence1": "a bank", "sentence2": "the bank", "start1": 2, "end1": 6, "label": 1}
    write_rows(tmp_path / "data" / "wic" / "validation.jsonl.gz", [record])
    written = write_texts(tmp_path / "texts.jsonl", data=tmp_path / "data")
    assert written["texts"] == {"wic": 2}
    assert "lacks boolq" in written["missing"]["boolq"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["bolq"], "no task called 'bolq'; did you mean boolq"),
        (["arithmetic_addition"], "has no texts that a document"),
    ],
)
def test_other_tasks_are_refused(tmp_path: Path, tasks: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_texts(tmp_path / "texts.jsonl", tasks)
    assert not (tmp_path / "texts.jsonl").exists()


def test_the_verb(tmp_path: Path, data_folder: Path) -> None:
    out = tmp_path / "texts.jsonl"
    result = CliRunner().invoke(
        app, ["evaluate", "texts", str(out), "--tasks", "boolq, wic", "--data", str(data_folder)]
    )
    assert result.exit_code == 0, result.output
    assert {line["task"] for line in lines(out)} == {"boolq", "wic"}
    assert f"{out}: " in result.stderr
