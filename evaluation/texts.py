"""The tasks' texts as they would stand in a training document: what decontamination looks for."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.rows import Row
from evaluation.sources import TaskDataset
from evaluation.sources.catalogue import TASK_DATA, StoredData
from evaluation.task_set import check_task_names
from foundation.errors import UserError
from foundation.files import write_text

TextFields = Callable[[Row], Mapping[str, str]]


def _lambada(row: Row) -> Mapping[str, str]:
    return {"text": row["text"]}


def _race(row: Row) -> Mapping[str, str]:
    answer = row["options"][row["answer"]]
    return {"article": row["article"], "question": row["question"], "answer": answer}


def _boolq(row: Row) -> Mapping[str, str]:
    return {"passage": row["passage"], "question": row["question"]}


def _piqa(row: Row) -> Mapping[str, str]:
    return {"goal": row["goal"], "solution": row["sol2"] if row["label"] else row["sol1"]}


def _hellaswag(row: Row) -> Mapping[str, str]:
    # As one text, which is how the story stands in its source.
    return {"query": f"{row['query']} {row['choices'][row['gold']]}"}


def _winogrande(row: Row) -> Mapping[str, str]:
    return {"sentence": row["sentence"].replace("_", row[f"option{row['answer']}"])}


def _pair(row: Row) -> Mapping[str, str]:
    return {"premise": row["premise"], "hypothesis": row["hypothesis"]}


def _wic(row: Row) -> Mapping[str, str]:
    return {"sentence1": row["sentence1"], "sentence2": row["sentence2"]}


# Of two forms of the same rows, one; of what is generated, nothing: "Q: 7 # 2 = ?" is in no document.
_FIELDS: Mapping[str, TextFields] = {
    "lambada": _lambada,
    "race_h": _race,
    "boolq": _boolq,
    "piqa": _piqa,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "anli_r2": _pair,
    "hans": _pair,
    "wic": _wic,
}
_SAME_ROWS = {"lambada_cloze": "lambada", "race_h_last": "race_h"}


def task_texts(task: str, data: Path | None) -> Iterator[dict[str, str]]:
    """`task`, `field`, `text` of every text that the task asks about, each text once, the right answers included.

    The rows are those that are scored, not those that examples come from. Raises UserError when they cannot be had.
    """
    stored = TASK_DATA[task]
    if not isinstance(stored, StoredData):
        raise ValueError(f"{task} has no texts")
    split = "test" if "test" in stored.official_rows else "validation"
    rows = TaskDataset(task, data, few_shot=False)[split]
    texts = ((field, text) for row in rows for field, text in _FIELDS[task](row).items())
    for field, text in dict.fromkeys(texts):
        yield {"task": task, "field": field, "text": text}


def write_texts(out: Path, tasks: Sequence[str] | None = None, data: Path | None = None) -> dict[str, Any]:
    """Write the texts of `tasks` to `out`, a JSON object a line; returns how many by task, and what is missing.

    Without names, of all tasks whose data is at hand: `missing` says why the others' is not. Raises UserError for an
    unknown task, for a named one without data, and when there is none at all.
    """
    names = list(_FIELDS) if tasks is None else [_SAME_ROWS.get(name, name) for name in check_task_names(tasks)]
    lines: list[str] = []
    counts: dict[str, int] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        if name not in _FIELDS:
            raise UserError(f"{name} has no texts that a document could hold; there are: {', '.join(_FIELDS)}")
        try:
            found = [json.dumps(record, ensure_ascii=False) for record in task_texts(name, data)]
        except UserError as error:
            if tasks is not None:
                raise
            missing[name] = str(error)
            continue
        lines += found
        counts[name] = len(found)
    if not counts:
        raise UserError("; ".join(missing.values()))
    write_text(out, "".join(f"{line}\n" for line in lines))
    return {"texts": counts, "missing": missing}
