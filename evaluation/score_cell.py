"""Scoring one cell of the grid through lm-eval."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluation.grid import Cell, CellResult
from evaluation.scoring import Backend, ScoringLM
from evaluation.task_set import set_shots
from foundation.errors import UserError


def score_cell(
    cell: Cell, task: Any, backend: Backend, limit: int | None, seed: int, advance: Callable[[int], None]
) -> tuple[CellResult, list[dict[str, Any]]]:
    """Evaluate `task` at the cell's shots; the result and, in lm-eval's form, a sample a document.

    `advance` is told the number of requests scored. Raises UserError, naming the cell, when the model cannot
    hold a request.
    """
    from lm_eval.evaluator import evaluate

    started = time.monotonic()
    set_shots(task, cell.shots, seed)
    model = ScoringLM(backend, advance)
    try:
        found = evaluate(model, {"tasks": {cell.task: task}}, limit=limit, log_samples=True)
    except UserError as error:
        raise UserError(f"{cell.task} at {cell.shots} shots: {error}") from None
    samples = [_plain(_sample(sample)) for sample in found.pop("samples")[cell.task]]
    seconds = round(time.monotonic() - started, 3)
    result = CellResult(cell.task, cell.shots, cell.key, _plain(found), asdict(model.usage), seconds)
    return result, samples


def _sample(sample: dict[str, Any]) -> dict[str, Any]:
    """As lm-eval writes its samples_*.jsonl, but with numbers left numbers."""
    arguments = {
        f"gen_args_{choice}": {f"arg_{place}": text for place, text in enumerate(argument)}
        for choice, argument in enumerate(sample["arguments"])
    }
    return {**sample, "arguments": arguments, "target": str(sample["target"])}


def _plain(value: Any) -> Any:
    """JSON's types only, the same on every run: functions in a task's configuration become their names."""
    return json.loads(json.dumps(value, default=_plain_leaf))


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else str(value)
