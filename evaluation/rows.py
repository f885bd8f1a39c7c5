"""The one small row that every task has, and how each source's record becomes it.

| task | row |
|---|---|
| lambada, lambada_cloze | text, whose last space-separated word is asked |
| race_h | article, question, options (four), answer: index of the right one |
| race_h_last | article, problems: its questions in their order, each with question, options, answer |
| boolq | passage (starting with its page's title), question (no question mark), label: 1 = yes |
| piqa | goal, sol1, sol2, label: 0 = sol1 |
| hellaswag | query, choices (four), gold: index of the right one |
| winogrande | sentence (a blank `_`), option1, option2, answer: "1" or "2" |
| anli_r2 | premise, hypothesis, label: 0 = entailment, 1 = neutral, 2 = contradiction |
| hans | premise, hypothesis, label: 0 = entailment, 1 = not; heuristic, subcase, template |
| wic | sentence1, sentence2, start1 and end1: where the word stands in sentence1, label: 1 = same sense |

A record that lacks a field is a KeyError; a value of the wrong kind, a ValueError or TypeError.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Row = dict[str, Any]
Record = Mapping[str, Any]
RowMaker = Callable[[Iterable[Record]], Iterable[Row]]

_RACE_LETTERS = ("A", "B", "C", "D")
_ANLI_LETTERS = ("e", "n", "c")


def one_row_each(normalise: Callable[[Record], Row]) -> RowMaker:
    """For tasks whose rows are their source's records, one by one."""

    def rows(records: Iterable[Record]) -> Iterator[Row]:
        return map(normalise, records)

    return rows


def lambada_row(record: Record) -> Row:
    """From OpenAI's file: every space and line break of the text stays as it is."""
    text = record["text"]
    if " " not in text:
        raise ValueError(f"a text of one word: {text!r}")
    return {"text": text}


def race_questions(records: Iterable[Record]) -> Iterator[Row]:
    """A row a question, from a record a question (`example_id` is not used) or from one an article (`problems`)."""
    for record in records:
        problems = record.get("problems", [record])
        # EleutherAI/race holds the list as Python source.
        for problem in ast.literal_eval(problems) if isinstance(problems, str) else problems:
            yield {"article": record["article"], **_race_problem(problem)}


def race_articles(records: Iterable[Record]) -> list[Row]:
    """A row an article, from either form: questions on one text in the order in which they come.

    The text and not an id tells articles apart, as in lm-eval's RACE of 2021, from which EleutherAI/race was made.
    """
    problems: dict[str, list[Row]] = {}
    for question in race_questions(records):
        problems.setdefault(question.pop("article"), []).append(question)
    return [{"article": article, "problems": questions} for article, questions in problems.items()]


def boolq_row(record: Record) -> Row:
    """From SuperGLUE's fields, or from a finished prompt and its gold choice, yes first."""
    if "query" in record:
        passage, question = record["query"].removesuffix("?\nAnswer:").rsplit("\nQuestion: ", 1)
        return {"passage": passage, "question": question, "label": int(record["choices"][record["gold"]] == "yes")}
    return {"passage": record["passage"], "question": record["question"], "label": int(record["label"])}


def piqa_row(record: Record) -> Row:
    """From the dataset's own fields."""
    return {**{field: record[field] for field in ("goal", "sol1", "sol2")}, "label": int(record["label"])}


def hellaswag_row(record: Record) -> Row:
    """From the raw fields, cleaned as lm-eval's hellaswag/utils.py does, or from fields cleaned already."""
    if "query" in record:
        return {"query": record["query"], "choices": list(record["choices"]), "gold": int(record["gold"])}
    context = record["ctx_a"] + " " + record["ctx_b"].capitalize()
    return {
        "query": _without_wikihow_marks(record["activity_label"] + ": " + context),
        "choices": [_without_wikihow_marks(ending) for ending in record["endings"]],
        "gold": int(record["label"]),
    }


def winogrande_row(record: Record) -> Row:
    """From the dataset's own fields."""
    return {field: record[field] for field in ("sentence", "option1", "option2", "answer")}


def anli_row(record: Record) -> Row:
    """From the Hub's fields, or from the authors' own: the premise is `context`, a label e, n or c."""
    premise = record["context"] if "context" in record else record["premise"]
    label = record["label"]
    index = _ANLI_LETTERS.index(label) if label in _ANLI_LETTERS else int(label)
    return {"premise": premise, "hypothesis": record["hypothesis"], "label": _within(index, 3)}


def hans_row(record: Record) -> Row:
    """From the Hub's fields, or from the authors' own: sentence1, sentence2 and gold_label in words."""
    if "gold_label" in record:
        label = ("entailment", "non-entailment").index(record["gold_label"])
        sentences = {"premise": record["sentence1"], "hypothesis": record["sentence2"]}
    else:
        label = _within(int(record["label"]), 2)
        sentences = {"premise": record["premise"], "hypothesis": record["hypothesis"]}
    return {**sentences, "label": label, **{field: record[field] for field in ("heuristic", "subcase", "template")}}


def wic_row(record: Record) -> Row:
    """From SuperGLUE's fields; a label may be a truth value."""
    numbers = {field: int(record[field]) for field in ("start1", "end1")}
    if not record["sentence1"][numbers["start1"] : numbers["end1"]]:
        raise ValueError(f"no word at {numbers} of {record['sentence1']!r}")
    sentences = {field: record[field] for field in ("sentence1", "sentence2")}
    return {**sentences, **numbers, "label": _within(int(record["label"]), 2)}


def _race_problem(problem: Record) -> Row:
    options = list(problem["options"])
    if len(options) != len(_RACE_LETTERS):
        raise ValueError(f"{len(options)} options instead of four: {problem['question']!r}")
    return {"question": problem["question"], "options": options, "answer": _RACE_LETTERS.index(problem["answer"])}


def _within(label: int, labels: int) -> int:
    # The Hub marks a row without a label by -1.
    if not 0 <= label < labels:
        raise ValueError(f"label {label}, which must be 0 to {labels - 1}")
    return label


def _without_wikihow_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")
