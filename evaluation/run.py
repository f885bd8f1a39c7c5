"""Evaluate a model over a grid of tasks and numbers of shots."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.display import GridDisplay, show_end
from evaluation.grid import Cell, CellResult, CellStore
from evaluation.libraries import prepare_libraries
from evaluation.model_folder import check_model_folder, describe_model
from evaluation.report import Results, markdown_table, published_accuracies
from evaluation.task_set import (
    check_task_names,
    choice_count,
    definition_sha256,
    document_count,
    load_tasks,
    split_sources,
)
from foundation.errors import UserError
from foundation.files import write_json, write_text

if TYPE_CHECKING:
    from evaluation.scoring import Backend

FORMAT = "mtnlg-evaluation"
_LIBRARIES = ("mtnlg", "lm-eval", "transformers", "torch")


@dataclass(frozen=True)
class Settings:
    """What a run was asked, besides the grid."""

    limit: int | None
    backend: str
    dtype: str
    seed: int


def evaluate(
    model: Path,
    *,
    tasks: Sequence[str],
    shots: Sequence[int],
    out: Path | None = None,
    limit: int | None = None,
    data: Path | None = None,
    backend: str = "hf",
    dtype: str = "float32",
    seed: int = 1234,
) -> dict[str, Any]:
    """Score every task at every number of shots; cells that an earlier run finished are reused.

    Writes `results.json`, `table.md`, `cells/` and `samples/` in `out` (default: `evaluation/` inside the
    model folder) and returns what `results.json` holds. `limit` is documents a task, from the first on;
    `data` a folder of task data, instead of the Hub or a package. Raises UserError for what a user can mend.
    """
    names, counts = check_task_names(tasks), list(dict.fromkeys(shots))
    check_model_folder(model)
    if backend != "hf":
        raise UserError(f"no backend called {backend!r}; there is: hf")
    prepare_libraries(offline=data is not None)
    settings = Settings(limit, backend, dtype, seed)
    loaded = load_tasks(names, data, counts)
    identity = describe_model(model)
    environment = _environment()
    cells = [_cell(name, count, loaded[name], settings, identity, environment) for name in names for count in counts]
    folder = out or model / "evaluation"
    results = _run_grid(cells, loaded, model, settings, CellStore(folder), (names, counts))
    document = _document(results, loaded, settings, identity, environment)
    write_json(folder / "results.json", document)
    notes = [_model_note(identity, settings), *_cut_notes(results)]
    write_text(folder / "table.md", markdown_table(names, counts, results, notes))
    show_end(_cut_notes(results), folder)
    return document


def _cell(
    name: str, shots: int, task: Any, settings: Settings, identity: Mapping[str, Any], environment: Mapping[str, Any]
) -> Cell:
    sources = split_sources(task)
    determinants = {
        "format": FORMAT,
        "task": name,
        "definition_sha256": definition_sha256(name),
        "shots": shots,
        "documents": document_count(task, settings.limit),
        "validation_sha256": sources["validation"].rows_sha256,
        "train_sha256": sources["train"].rows_sha256 if shots else None,
        "seed": settings.seed,
        "dtype": settings.dtype,
        "backend": settings.backend,
        "model_sha256": identity["files_sha256"],
        "libraries": environment["libraries"],
        "device": environment["device"],
    }
    return Cell(name, shots, determinants)


def _run_grid(
    cells: Sequence[Cell],
    tasks: Mapping[str, Any],
    model: Path,
    settings: Settings,
    store: CellStore,
    axes: tuple[Sequence[str], Sequence[int]],
) -> Results:
    from evaluation.hf_backend import HFBackend
    from evaluation.score_cell import score_cell

    requests = {
        cell.name: document_count(tasks[cell.task], settings.limit) * choice_count(tasks[cell.task]) for cell in cells
    }
    # Every example is about as long as the question.
    work = {cell.name: float(requests[cell.name] * (1 + cell.shots)) for cell in cells}
    backend: Backend | None = None
    results: dict[tuple[str, int], CellResult] = {}
    with GridDisplay(*axes, work) as display:
        for cell in cells:
            result = store.load(cell)
            reused = result is not None
            if result is None:
                display.begin(cell)
                # A run whose cells are all there loads no model.
                backend = backend or HFBackend(model, settings.dtype)

                def advance(count: int, cell: Cell = cell) -> None:
                    display.advance(count / requests[cell.name], cell)

                fresh, samples = score_cell(cell, tasks[cell.task], backend, settings.limit, settings.seed, advance)
                result = store.save(cell, samples, fresh)
            display.finish(cell, result, reused=reused)
            results[cell.task, cell.shots] = result
    return results


def _environment() -> dict[str, Any]:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "device": device,
        "threads": torch.get_num_threads(),
    }


def _document(
    results: Results,
    tasks: Mapping[str, Any],
    settings: Settings,
    identity: Mapping[str, Any],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """results.json: `runs` maps a number of shots to what lm-eval returns for a run at it."""
    runs: dict[str, dict[str, Any]] = {}
    for (_, shots), result in results.items():
        run = runs.setdefault(str(shots), {})
        for section, content in result.lm_eval.items():
            run.setdefault(section, {}).update(content)
    return {
        "format": FORMAT,
        "model": dict(identity),
        "settings": asdict(settings),
        "environment": dict(environment),
        "data": {
            name: {split: asdict(source) for split, source in split_sources(task).items()}
            for name, task in tasks.items()
        },
        "cells": [
            {key: value for key, value in asdict(result).items() if key != "lm_eval"} for result in results.values()
        ],
        "published": published_accuracies().model_dump(),
        "runs": runs,
    }


def _model_note(identity: Mapping[str, Any], settings: Settings) -> str:
    documents = f"the first {settings.limit} documents of each task" if settings.limit else "all documents"
    return (
        f"Model: {identity['path']}, files {identity['files_sha256'][:12]}; {settings.dtype}, {documents}, "
        f"few-shot seed {settings.seed}."
    )


def _cut_notes(results: Results) -> list[str]:
    return [
        f"{result.task} at {result.shots} shots: {result.usage['contexts_cut']} of {result.usage['requests']} prompts "
        "were longer than the model's context and lost their beginning."
        for result in results.values()
        if result.usage["contexts_cut"]
    ]
