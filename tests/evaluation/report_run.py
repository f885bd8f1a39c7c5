"""A run folder as `mtnlg evaluate` leaves it, of made-up scores, for the tests of the reports."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.report.published import published_accuracies
from foundation.files import sha256_file, write_json, write_text

HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror=alert(1)> & "quoted" {{ 7*7 }} <!-- '

TITLES = {
    "lambada": "LAMBADA",
    "lambada_cloze": "LAMBADA (cloze)",
    "boolq": "BoolQ",
    "race_h": "RACE-h",
    "piqa": "PIQA",
    "hellaswag": "HellaSwag",
    "winogrande": "WinoGrande",
    "anli_r2": "ANLI R2",
    "hans": "HANS",
    "wic": "WiC",
}
ROWS: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = (
    ("lambada", (("lambada", 0), ("lambada_cloze", 1), ("lambada_cloze", 15))),
    *((task, ((task, 0), (task, 1), (task, few))) for task, few in (("boolq", 32), ("race_h", 10), ("piqa", 50))),
    *((task, ((task, 0), (task, 1), (task, few))) for task, few in (("hellaswag", 20), ("winogrande", 50))),
    *((task, ((task, 0), (task, 1), (task, few))) for task, few in (("anli_r2", 50), ("hans", 4), ("wic", 32))),
)
CHOICES = {
    "boolq": (" no", " yes"),
    "piqa": (" Pour the wax slowly into the mould.", " Pour the mould slowly into the wax, then stir it."),
    "hellaswag": (
        " rinses it and hangs it up.",
        " eats the bucket.",
        " sings to the crowd.",
        " is seen again, laughing.",
    ),
    "race_h": (" He missed the train.", " He lost his ticket.", " He was told to wait.", " He met a friend."),
    "anli_r2": (" True", " Neither", " False"),
    "hans": (" True", " False"),
    "wic": (" no", " yes"),
}
WORDS = ("the", "old", "ferry", "crossed", "a", "river", "at", "dawn", "and", "nobody", "asked", "why")
HEURISTICS = ("lexical_overlap", "subsequence", "constituent")


def write_run(
    folder: Path,
    *,
    rows: Sequence[str] = tuple(TITLES),
    documents: int = 30,
    seeds: Sequence[int] = (1234,),
    skill: float = 0.0,
    examples_by_document: bool = False,
) -> Path:
    """Write results.json and samples/ for some of the table's rows; `skill` is added to every answer's chance."""
    rng = random.Random(7)
    table = [(task, cells) for task, cells in ROWS if task in rows]
    tasks = list(dict.fromkeys(task for _, cells in table for task, _ in cells))
    scored = list(dict.fromkeys(cell for _, cells in table for cell in cells))
    cells = [
        _write_cell(folder, task, shots, seed, _Making(documents, len(seeds) > 1, skill, examples_by_document, rng))
        for task, shots in scored
        for seed in (seeds if shots else seeds[:1])
    ]
    write_json(folder / "results.json", _document(table, tasks, cells, seeds))
    return folder


@dataclass(frozen=True)
class _Making:
    documents: int
    several_seeds: bool
    skill: float
    examples_by_document: bool
    rng: random.Random


def read_run(folder: Path) -> dict[str, Any]:
    """The results document."""
    document: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return document


def change_run(folder: Path, **sections: Any) -> None:
    """Replace sections of results.json."""
    write_json(folder / "results.json", {**read_run(folder), **sections})


def _document(
    table: Sequence[tuple[str, tuple[tuple[str, int], ...]]],
    tasks: Sequence[str],
    cells: Sequence[dict[str, Any]],
    seeds: Sequence[int],
) -> dict[str, Any]:
    about: dict[str, dict[str, Any]] = {
        task: {"title": TITLES[task], "metric": "acc", "cluster": None, "breakdown": [], "notes": []} for task in tasks
    }
    if "hans" in about:
        about["hans"] |= {"cluster": "template", "breakdown": ["heuristic", "label", "subcase"]}
        about["hans"]["notes"] = ["another draw than the official set"]
    if "race_h" in about:
        about["race_h"] |= {"cluster": "passage"}
    source = {
        "kind": "folder",
        "name": "data",
        "files": {"validation.jsonl.gz": "ab" * 32},
        "rows": 30,
        "rows_sha256": "cd" * 32,
    }
    return {
        "format": "mtnlg-evaluation",
        "suite": "mt-nlg",
        "model": {
            **{"path": "runs/demo-hf", "files_sha256": "89f7649b6a620f25" * 4, "manifest_sha256": None},
            "about": {"step": 100, "model": {"num_layers": 4, "hidden_size": 192}},
        },
        "settings": {
            "limit": None,
            "backend": "hf",
            "dtype": "float32",
            "seeds": list(seeds),
            "examples": "fixed",
            "fit_examples": True,
        },
        "environment": {
            "python": "3.11.7",
            "device": "cpu",
            "threads": 2,
            "libraries": {"lm-eval": "0.4.13", "torch": "2.13.0"},
        },
        "data": {task: {"validation": source, "train": source} for task in tasks},
        "tasks": about,
        "table": {
            "columns": ["0-shot", "1-shot", "few-shot"],
            "rows": [
                {"title": TITLES[task], "cells": [list(cell) for cell in row], "published": task} for task, row in table
            ],
        },
        "cells": list(cells),
        "published": published_accuracies().model_dump(),
        "runs": {},
    }


def _write_cell(folder: Path, task: str, shots: int, seed: int, making: _Making) -> dict[str, Any]:
    documents = making.documents
    samples = [_sample(task, shots, number, making) for number in range(documents)]
    path = folder / "samples" / f"{task}-{shots}shot{f'-seed{seed}' if making.several_seeds else ''}.jsonl"
    write_text(path, "".join(json.dumps(sample) + "\n" for sample in samples))
    value = sum(sample["acc"] for sample in samples) / documents
    stderr = math.sqrt(value * (1 - value) / max(1, documents - 1))
    requests = sum(len(sample["arguments"]) for sample in samples)
    cut = task == "boolq" and shots > 1
    return {
        **{"task": task, "shots": shots, "seed": seed, "key": "ef" * 32},
        "examples": 8 if cut else shots,
        **{"samples_sha256": sha256_file(path), "prompts_sha256": "12" * 32},
        "accuracy": {
            **{
                "value": value,
                "stderr": stderr,
                "low": max(0.0, value - 1.96 * stderr),
                "high": min(1.0, value + 1.96 * stderr),
            },
            **{"documents": documents, "clusters": documents},
        },
        "usage": {
            **{"requests": requests, "contexts_cut": 2 if task == "race_h" and shots > 1 else 0},
            **{"tokens_asked": 90_000, "tokens_computed": 30_000, "seconds": 12.5},
        },
    }


def _sample(task: str, shots: int, number: int, making: _Making) -> dict[str, Any]:
    rng, skill = making.rng, making.skill
    row, question, choices, right = _question(task, number, random.Random(1000 * number + len(task)))
    drawn = random.Random(number if making.examples_by_document else 0)
    examples = "".join(f"{_question(task, 10_000, drawn)[1]} example answer {place}\n\n" for place in range(shots))
    lls = [-rng.uniform(4, 60) for _ in choices]
    if rng.random() < skill:
        lls[right] = -rng.uniform(1, 4)
    if task == "winogrande":
        arguments = [(examples + question + choice, " always got the easier cases.") for choice in choices]
    else:
        arguments = [(examples + question, choice) for choice in choices]
    greedy = [rng.random() < 0.4 + skill for _ in choices]
    correct = greedy[0] if len(choices) == 1 else lls[right] == max(lls)
    return {
        **{"doc_id": number, "doc": row, "target": choices[0].strip() if task == "winogrande" else str(right)},
        "arguments": {
            f"gen_args_{n}": {"arg_0": context, "arg_1": ending} for n, (context, ending) in enumerate(arguments)
        },
        "filtered_resps": [[ll, is_greedy] for ll, is_greedy in zip(lls, greedy, strict=True)],
        **{"metrics": ["acc"], "acc": float(correct)},
    }


def _question(task: str, number: int, rng: random.Random) -> tuple[dict[str, Any], str, tuple[str, ...], int]:
    """Row, prompt, choices and the right one's place."""
    text = HOSTILE if number == 3 else " ".join(rng.choices(WORDS, k=rng.randint(8, 90)))
    if task == "hans":
        place = number % 30
        right = place // 5 % 2
        row = {
            "heuristic": HEURISTICS[place // 10],
            "label": right,
            "subcase": f"sub_case_{place % 10}_of_{place // 10}",
        }
        return (
            {**row, "template": f"temp{number // 3}"},
            f"{text}\nQuestion: The ferry crossed? True or False?\n\nAnswer:",
            CHOICES["hans"],
            right,
        )
    if task.startswith("lambada"):
        return {"text": text}, f"{text}" + (" ____. ->" if "cloze" in task else ""), (" dawn",), 0
    if task == "winogrande":
        return {"sentence": text, "answer": "2"}, f"{text} so ", ("Sarah", "Maria"), 1
    choices = CHOICES[task]
    return {"passage": text}, f"{text}\nQuestion: {number}, did it?\nAnswer:", choices, rng.randrange(len(choices))


def interval_of(cell: dict[str, Any]) -> Iterator[float]:
    """Accuracy and the interval's ends, in %."""
    return (100 * cell["accuracy"][key] for key in ("value", "low", "high"))
