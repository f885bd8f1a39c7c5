"""The one small row that every task has, and how each source's record becomes it.

| task | row |
|---|---|
| boolq | passage (starting with its page's title), question (no question mark), label: 1 = yes |
| piqa | goal, sol1, sol2, label: 0 = sol1 |
| hellaswag | query, choices (four), gold: index of the right one |
| winogrande | sentence (a blank `_`), option1, option2, answer: "1" or "2" |

A record that lacks a field is a KeyError; a value of the wrong kind, a ValueError or TypeError.
"""

import re
from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]


def boolq_row(record: Mapping[str, Any]) -> Row:
    """From SuperGLUE's fields, or from a finished prompt and its gold choice, yes first."""
    if "query" in record:
        passage, question = record["query"].removesuffix("?\nAnswer:").rsplit("\nQuestion: ", 1)
        return {"passage": passage, "question": question, "label": int(record["choices"][record["gold"]] == "yes")}
    return {"passage": record["passage"], "question": record["question"], "label": int(record["label"])}


def piqa_row(record: Mapping[str, Any]) -> Row:
    """From the dataset's own fields."""
    return {**{field: record[field] for field in ("goal", "sol1", "sol2")}, "label": int(record["label"])}


def hellaswag_row(record: Mapping[str, Any]) -> Row:
    """From the raw fields, cleaned as lm-eval's hellaswag/utils.py does, or from fields cleaned already."""
    if "query" in record:
        return {"query": record["query"], "choices": list(record["choices"]), "gold": int(record["gold"])}
    context = record["ctx_a"] + " " + record["ctx_b"].capitalize()
    return {
        "query": _without_wikihow_marks(record["activity_label"] + ": " + context),
        "choices": [_without_wikihow_marks(ending) for ending in record["endings"]],
        "gold": int(record["label"]),
    }


def winogrande_row(record: Mapping[str, Any]) -> Row:
    """From the dataset's own fields."""
    return {field: record[field] for field in ("sentence", "option1", "option2", "answer")}


def _without_wikihow_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")
