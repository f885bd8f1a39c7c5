"""Suites and tables."""

import json

import pytest

from evaluation.suites import suite_table
from evaluation.table import Table, table_of
from evaluation.task_set import TASK_FOLDER
from foundation.errors import UserError


def test_suite_has_the_papers_nine_tasks_at_gpt3s_numbers_of_examples() -> None:
    table = suite_table("mt-nlg")
    few = {row.published: row.cells[2][1] for row in table.rows if row.published}
    assert few == {
        "lambada": 15,
        "boolq": 32,
        "race_h": 10,
        "piqa": 50,
        "hellaswag": 20,
        "winogrande": 50,
        "anli_r2": 50,
        "hans": 4,
        "wic": 32,
    }
    assert all([shots for _, shots in row.cells[:2]] == [0, 1] for row in table.rows)


def test_every_task_of_the_suite_exists() -> None:
    assert set(suite_table("mt-nlg").tasks) <= {path.stem for path in TASK_FOLDER.glob("*.yaml")}


def test_some_columns_of_a_suite() -> None:
    table = suite_table("mt-nlg", ["few", "0"])
    assert table.columns == ("few-shot", "0-shot")
    assert table.rows[0].cells == (("lambada_cloze", 15), ("lambada", 0))


def test_unknown_names() -> None:
    with pytest.raises(UserError, match="no suite called 'mtnlg'; did you mean mt-nlg"):
        suite_table("mtnlg")
    with pytest.raises(UserError, match="no suite called 'x'; there are: mt-nlg, bias"):
        suite_table("x")
    with pytest.raises(UserError, match="no column '2'; it has: 0, 1, few"):
        suite_table("mt-nlg", ["0", "2"])


def test_table_goes_through_json() -> None:
    table = table_of(["piqa", "boolq", "piqa"], [0, 5, 0])
    assert table.cells == [("piqa", 0), ("piqa", 5), ("boolq", 0), ("boolq", 5)]
    assert Table.from_json(json.loads(json.dumps(table.as_json()))) == table
