"""Scoring one cell of the grid through lm-eval."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from evaluation.few_shot import set_examples
from evaluation.grid import Cell, CellResult
from evaluation.score_store import ScoreStore
from evaluation.scoring import Backend, ScoringLM
from evaluation.statistics import accuracy_interval
from evaluation.task_set import task_info
from foundation.errors import UserError


def score_cell(
    cell: Cell,
    task: Any,
    open_backend: Callable[[], Backend],
    store: ScoreStore,
    *,
    limit: int | None = None,
    examples: int | None = None,
    fixed: bool = True,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[CellResult, list[dict[str, Any]]]:
    """Evaluate `task` at the cell's shots; the result and, in lm-eval's form, a sample a document.

    `examples` stand before each question where the context holds fewer than the cell's shots, `fixed` ones or drawn
    for each. `advance` is told the number of requests scored. Raises UserError, naming the cell, when the model cannot
    hold a request.
    """
    from lm_eval.evaluator import evaluate

    shown = cell.shots if examples is None else examples
    set_examples(task, shown, cell.seed, fixed=fixed)
    model = ScoringLM(open_backend, store, advance)
    try:
        found = evaluate(model, {"tasks": {cell.task: task}}, limit=limit, log_samples=True)
    except UserError as error:
        raise UserError(f"{cell.task} at {cell.shots} shots: {error}") from None
    samples = [_plain(_sample(sample)) for sample in found.pop("samples")[cell.task]]
    result = CellResult(
        cell.task,
        cell.shots,
        cell.seed,
        cell.key,
        shown,
        _accuracy(samples, task),
        asdict(model.usage),
        model.prompts_sha256,
        _plain(found),
    )
    return result, samples


def _accuracy(samples: list[dict[str, Any]], task: Any) -> dict[str, Any]:
    info = task_info(task)
    clusters = [str(sample["doc"][info["cluster"]]) for sample in samples] if info["cluster"] else None
    return asdict(accuracy_interval([float(sample[info["metric"]]) for sample in samples], clusters))


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
