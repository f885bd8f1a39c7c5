"""The generated tasks of hidden arithmetic."""

from fractions import Fraction
from typing import Any

import pytest

from evaluation.sources import open_task_data
from evaluation.sources.dataset import rows_sha256
from evaluation.tasks.arithmetic import SYMBOLS, arithmetic_rows
from tests.evaluation.test_parity import our_task
from tests.evaluation.test_tasks_files import requests

RESULT = {
    "division": lambda left, right: Fraction(left, right),
    "multiplication": lambda left, right: Fraction(left * right),
    "addition": lambda left, right: Fraction(left + right),
    "subtraction": lambda left, right: Fraction(left - right),
}


@pytest.mark.parametrize("operation", list(SYMBOLS))
def test_answers_are_exact_and_shortest(operation: str) -> None:
    rows = arithmetic_rows(operation, "test") + arithmetic_rows(operation, "train")
    for row in rows:
        assert Fraction(row["answer"]) == RESULT[operation](row["left"], row["right"]) > 0
        assert not row["answer"].endswith((".", ".0")) and not ("." in row["answer"] and row["answer"].endswith("0"))
        assert row["symbol"] == SYMBOLS[operation]
    assert len({(row["left"], row["right"]) for row in rows}) == len(rows) == 300


def test_examples_of_the_announcement_are_written_as_it_writes_them() -> None:
    from evaluation.tasks.arithmetic import _quotient

    shown = {(11, 2): "5.5", (18, 9): "2", (35, 4): "8.75", (27, 9): "3", (45, 5): "9", (18, 6): "3", (90, 9): "10"}
    assert {pair: _quotient(*pair) for pair in shown} == shown
    assert _quotient(10, 3) is None


@pytest.mark.parametrize(
    ("operation", "first", "digest"),
    [
        ("division", (87, 5, "17.4"), "f0977bf4bf1d41cb"),
        ("multiplication", (17, 9, "153"), "cf6a96a6dc54f9fa"),
        ("addition", (37, 51, "88"), "1115a6d32c53cafa"),
        ("subtraction", (48, 9, "39"), "79b15fb5f54f47b1"),
    ],
)
def test_questions_stay_the_same_for_ever(operation: str, first: tuple[int, int, str], digest: str) -> None:
    rows = arithmetic_rows(operation, "test")
    assert (rows[0]["left"], rows[0]["right"], rows[0]["answer"]) == first
    assert rows_sha256(rows).startswith(digest)


def test_another_seed_gives_other_questions() -> None:
    assert arithmetic_rows("division", "test", seed=1) != arithmetic_rows("division", "test", seed=2)


@pytest.fixture(scope="module")
def division() -> Any:
    return our_task("arithmetic_division", 2, folder=None)


def test_prompt_is_that_of_the_announcement(division: Any) -> None:
    ((context, answer),) = requests(division, 0, shots=2)
    lines = context.split("\n")
    assert [line[:3] for line in lines] == ["Q: ", "A: ", "Q: ", "A: ", "Q: ", "A:"]
    assert lines[4:] == ["Q: 87 # 5 = ?", "A:"]
    left, symbol, right = lines[0].removeprefix("Q: ").removesuffix(" = ?").split()
    assert (symbol, Fraction(lines[1].removeprefix("A: "))) == ("#", Fraction(int(left), int(right)))
    assert answer == " 17.4\n", "the line's end is part of the answer: 17.4 is not 17.45"


def test_right_is_exactly_the_greedy_answer(division: Any) -> None:
    row = division.eval_docs[0]
    assert division.process_results(row, [(-0.5, True)]) == {"acc": 1}
    assert division.process_results(row, [(-0.5, False)]) == {"acc": 0}


def test_source_says_that_rows_are_generated() -> None:
    dataset = open_task_data("arithmetic_multiplication")
    assert len(dataset["test"]) == 200
    assert dataset.examples_split == "train"
    source = dataset.sources["test"]
    assert (source.kind, source.name, source.files) == ("generated", "multiplication as $^%, seed 530", {})
    assert source.notes == []
