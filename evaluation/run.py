"""Evaluate a model over a table's cells: tasks, numbers of shots, seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from evaluation.backends.choice import BackendChoice, LazyBackend
from evaluation.display import GridDisplay, show_end
from evaluation.grid import Cell, CellResult, CellStore
from evaluation.libraries import describe_environment, prepare_libraries
from evaluation.model import find_model
from evaluation.report.notes import notes
from evaluation.report.reports import published_accuracies, write_reports
from evaluation.run_folder import FORMAT, RunFolder
from evaluation.table import Table
from evaluation.task_set import (
    check_task_names,
    choice_count,
    definitions_sha256,
    document_count,
    load_tasks,
    rows_sha256,
    split_sources,
    task_info,
)
from foundation.errors import UserError
from foundation.files import write_json


@dataclass(frozen=True)
class Settings:
    """What a run was asked, besides its table and its backend.

    `limit` is documents a task, from the first on. `fixed_examples`: the same examples for every document, not drawn
    for each. `fit_examples`: fewer where the context is short, instead of prompts that lose their beginning.
    """

    suite: str | None = None
    limit: int | None = None
    data: Path | None = None
    seeds: tuple[int, ...] = (1234,)
    fixed_examples: bool = True
    fit_examples: bool = False


def evaluate(
    model: str, table: Table, settings: Settings, choice: BackendChoice, *, out: Path | None = None
) -> dict[str, Any]:
    """Score every cell of the table; what an earlier run into the same folder scored is not scored again.

    `model` is a folder in Hugging Face's format, a training run or one of its checkpoints, or a server's URL. Writes
    `results.json`, tables, `report.html`, `cells/`, `samples/` and `scores/` in `out` (default: `evaluation/` inside
    the model's folder) and returns what `results.json` holds. Raises UserError for what a user can mend.
    """
    check_task_names(table.tasks)
    prepare_libraries(offline=settings.data is not None)
    found = find_model(model, choice)
    folder = out or found.default_results()
    tasks = load_tasks(table.cells, settings.data)
    run = Run(table, settings, choice, found.identity, describe_environment(choice.name), tasks)
    with LazyBackend(choice, found.location) as backend:
        return _evaluate(run, folder, backend)


def rescore(folder: Path, data: Path | None) -> dict[str, Any]:
    """Metrics, intervals and reports anew from the log-likelihoods in a run folder, without its model.

    For tasks whose scoring changed. Raises UserError when a prompt changed, so that its score is not there.
    """
    before = RunFolder.open(folder).document
    settings, choice = _settings_of(before, data)
    prepare_libraries(offline=data is not None)
    table = Table.from_json(before["table"])
    examples = {(cell["task"], cell["shots"], cell["seed"]): cell["examples"] for cell in before["cells"]}
    tasks = load_tasks(table.cells, data)
    run = Run(table, settings, choice, before["model"], before["environment"], tasks, examples)

    def refuse() -> NoReturn:
        raise UserError(f"{folder} lacks scores for these prompts: tasks or data changed; evaluate the model again")

    return _evaluate(run, folder, refuse)


def _settings_of(document: Mapping[str, Any], data: Path | None) -> tuple[Settings, BackendChoice]:
    held = document["settings"]
    settings = Settings(
        document["suite"],
        held["limit"],
        data,
        tuple(held["seeds"]),
        fixed_examples=held["examples"] == "fixed",
        fit_examples=held["fit_examples"],
    )
    return settings, BackendChoice(held["backend"], held["dtype"])


@dataclass(frozen=True)
class Run:
    """Everything that a run's results depend on."""

    table: Table
    settings: Settings
    choice: BackendChoice
    identity: Mapping[str, Any]
    environment: Mapping[str, Any]
    tasks: Mapping[str, Any]
    examples: Mapping[tuple[str, int, int], int] = field(default_factory=dict)  # of a cell, where known from before

    @property
    def cells(self) -> list[Cell]:
        """Every cell once a seed; zero-shot there is nothing to draw."""
        seeds = self.settings.seeds
        return [
            self._cell(task, shots, seed)
            for task, shots in self.table.cells
            for seed in (seeds if shots else seeds[:1])
        ]

    def requests(self, cell: Cell) -> int:
        """How many requests the cell has, about."""
        task = self.tasks[cell.task]
        return document_count(task, self.settings.limit) * choice_count(task)

    def _cell(self, task: str, shots: int, seed: int) -> Cell:
        settings, loaded = self.settings, self.tasks[task]
        name = f"{task}-{shots}shot" + (f"-seed{seed}" if len(settings.seeds) > 1 else "")
        scored_by = {
            "format": FORMAT,
            "dtype": self.choice.dtype,
            "backend": self.choice.name,
            "model_sha256": self.identity["files_sha256"],
            "libraries": self.environment["libraries"],
            "device": self.environment["device"],
        }
        asked = {
            "task": task,
            "definitions_sha256": definitions_sha256(),
            "shots": shots,
            "documents": document_count(loaded, settings.limit),
            "rows_sha256": rows_sha256(loaded, with_examples=shots > 0),
            "seed": seed,
            "fixed_examples": settings.fixed_examples,
            "fit_examples": settings.fit_examples,
        }
        return Cell(name, task, shots, seed, {**scored_by, **asked}, scored_by)


def _evaluate(run: Run, folder: Path, open_backend: Callable[[], Any]) -> dict[str, Any]:
    results = _score_cells(run, CellStore(folder), open_backend)
    document = _document(run, results)
    write_json(folder / "results.json", document)
    show_end(notes(document), write_reports(folder))
    return document


def _score_cells(run: Run, store: CellStore, open_backend: Callable[[], Any]) -> list[CellResult]:
    from evaluation.score_cell import score_cell

    cells = run.cells
    # Every example is about as long as the question.
    work = {cell.name: float(run.requests(cell) * (1 + cell.shots)) for cell in cells}
    results = []
    with GridDisplay(_head(run), work) as display:
        for cell in cells:
            result = store.load(cell)
            reused = result is not None
            if result is None:
                display.begin(cell)
                with store.scores(cell) as scores:
                    fresh, samples = score_cell(
                        cell,
                        run.tasks[cell.task],
                        open_backend,
                        scores,
                        limit=run.settings.limit,
                        examples=_examples(run, cell, open_backend),
                        fixed=run.settings.fixed_examples,
                        advance=lambda count, cell=cell: display.advance(count / run.requests(cell), cell),  # type: ignore[misc]
                    )
                result = store.save(cell, samples, fresh)
            display.finish(cell, cell_entry(result), reused=reused)
            results.append(result)
    return results


def _examples(run: Run, cell: Cell, open_backend: Callable[[], Any]) -> int:
    from evaluation.few_shot import fitting_examples, set_examples

    if not (cell.shots and run.settings.fit_examples):
        return cell.shots
    known = run.examples.get((cell.task, cell.shots, cell.seed))
    if known is not None:
        return known
    task, backend = run.tasks[cell.task], open_backend()
    set_examples(task, cell.shots, cell.seed, fixed=True)
    documents = document_count(task, run.settings.limit)
    return fitting_examples(task, backend.tokenizer, backend.max_length, documents)


def _head(run: Run) -> dict[str, Any]:
    """The document without what is scored."""
    settings = run.settings
    return {
        "format": FORMAT,
        "suite": settings.suite,
        "model": dict(run.identity),
        "settings": {
            "limit": settings.limit,
            "backend": run.choice.name,
            "dtype": run.choice.dtype,
            "seeds": list(settings.seeds),
            "examples": "fixed" if settings.fixed_examples else "per-document",
            "fit_examples": settings.fit_examples,
        },
        "environment": dict(run.environment),
        "tasks": {name: task_info(task) for name, task in run.tasks.items()},
        "table": run.table.as_json(),
        "published": published_accuracies().model_dump(),
    }


def _document(run: Run, results: Sequence[CellResult]) -> dict[str, Any]:
    """results.json: `runs` maps a number of shots to what lm-eval returns for a run at it."""
    runs: dict[str, dict[str, Any]] = {}
    for result in results:
        name = str(result.shots)
        if len(run.settings.seeds) > 1 and result.shots:
            name += f"-seed{result.seed}"
        for section, content in result.lm_eval.items():
            runs.setdefault(name, {}).setdefault(section, {}).update(content)
    data = {
        name: {split: asdict(source) for split, source in split_sources(task).items()}
        for name, task in run.tasks.items()
    }
    return {**_head(run), "data": data, "cells": [cell_entry(result) for result in results], "runs": runs}


def cell_entry(result: CellResult) -> dict[str, Any]:
    """A cell in results.json."""
    return {key: value for key, value in asdict(result).items() if key != "lm_eval"}
