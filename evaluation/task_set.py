"""Tasks as lm-eval objects: found by name, loaded with their data, set to a number of shots."""

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


def load_tasks(names: Sequence[str], data: Path | None, shots: Sequence[int]) -> dict[str, Any]:
    """lm-eval's task objects by name, with validation rows and, if any shots are asked, training rows.

    Raises UserError when data are missing or hold fewer rows than the shots need.
    """
    from lm_eval.tasks import TaskManager

    metadata = {"data": str(data) if data else None, "few_shot": max(shots) > 0}
    manager = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, metadata=metadata)
    loaded: dict[str, Any] = manager.load(list(names))["tasks"]
    for name, task in loaded.items():
        source = split_sources(task).get("train")
        # One more than the shots is drawn, and the question itself dropped if it is among them.
        if source and source.rows <= max(shots):
            raise UserError(
                f"{max(shots)} shots of {name} need more than the {source.rows} training rows in {source.name}"
            )
    return loaded


def set_shots(task: Any, shots: int, seed: int) -> None:
    """Put `shots` examples before each question, drawn anew from `seed`."""
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=seed)


def split_sources(task: Any) -> dict[str, SplitSource]:
    """Where the task's rows were read, by split."""
    sources: dict[str, SplitSource] = task.dataset.sources
    return sources


def document_count(task: Any, limit: int | None) -> int:
    """Documents that a run scores."""
    return min(len(task.eval_docs), limit or len(task.eval_docs))


def choice_count(task: Any) -> int:
    """Answers of a question, by its first document."""
    return len(task.doc_to_choice(task.eval_docs[0]))


def definition_sha256(name: str) -> str:
    """SHA-256 of a task's prompt and scoring: its YAML file and the functions beside it."""
    files = [TASK_FOLDER / f"{name}.yaml", TASK_FOLDER / f"{name}.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files if path.is_file())).hexdigest()
