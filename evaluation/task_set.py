"""Tasks as lm-eval objects: found by name, loaded with their data."""

import difflib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.sources import SplitSource
from foundation.errors import UserError

TASK_FOLDER = Path(__file__).resolve().parent / "tasks"


def check_task_names(names: Sequence[str]) -> list[str]:
    """The names, each once. Raises UserError for none and for an unknown one, with the nearest known."""
    known = sorted(path.stem for path in TASK_FOLDER.glob("*.yaml"))
    if not names:
        raise UserError(f"no task named; there are: {', '.join(known)}")
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
            raise UserError(f"no task called {name!r}; {hint}")
    return list(dict.fromkeys(names))


def load_tasks(cells: Sequence[tuple[str, int]], data: Path | None) -> dict[str, Any]:
    """lm-eval's task objects for cells of (task, shots), by name; rows for examples only where shots are asked.

    Raises UserError when data are missing or hold fewer rows than the shots need.
    """
    from lm_eval.tasks import TaskManager

    most = {name: max(shots for task, shots in cells if task == name) for name, _ in cells}
    metadata = {"data": str(data) if data else None, "few_shot": any(most.values())}
    manager = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, metadata=metadata)
    loaded: dict[str, Any] = manager.load(list(most))["tasks"]
    for name, task in loaded.items():
        rows = len(task.fewshot_docs()) if most[name] else 0
        # One more than the shots is drawn, and the question itself dropped if it is among them.
        if most[name] and rows <= most[name]:
            raise UserError(f"{most[name]} shots of {name} need more than the {rows} rows that it has for examples")
    return loaded


def task_info(task: Any) -> dict[str, Any]:
    """What a task says about itself: title, metric, cluster, breakdown; and notes on its data."""
    said = task.config.metadata or {}
    sources = split_sources(task).values()
    return {
        "title": said.get("title", task.config.task),
        "metric": said.get("metric", "acc"),
        "cluster": said.get("cluster"),
        "breakdown": said.get("breakdown", []),
        "notes": list(dict.fromkeys(note for source in sources for note in getattr(source, "notes", ()))),
    }


def split_sources(task: Any) -> dict[str, SplitSource]:
    """Where the task's rows were read, by split; of a task that generates its rows, nothing."""
    return dict(getattr(task.dataset, "sources", {}))


def rows_sha256(task: Any, *, with_examples: bool) -> dict[str, str]:
    """The hashes of the rows that are asked and, with examples, of those that they come from."""
    evaluated = task.config.test_split or task.config.validation_split
    return {
        split: source.rows_sha256
        for split, source in split_sources(task).items()
        if with_examples or split == evaluated
    }


def document_count(task: Any, limit: int | None) -> int:
    """Documents that a run scores."""
    return min(len(task.eval_docs), limit or len(task.eval_docs))


def choice_count(task: Any) -> int:
    """Answers of a question, by its first document."""
    return len(task.doc_to_choice(task.eval_docs[0])) if task.OUTPUT_TYPE == "multiple_choice" else 1


def definitions_sha256() -> str:
    """SHA-256 of all prompts and scoring: the task files and the functions beside them.

    Of all, since tasks share functions; scores are found by their prompts, so a changed task scores nothing anew.
    """
    files = sorted(path for path in TASK_FOLDER.iterdir() if path.suffix in {".yaml", ".py"})
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
