"""The one reader of what `mtnlg evaluate` left in a folder: results.json and the samples beside it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import read_json, sha256_file

FORMAT = "mtnlg-evaluation"
RESULTS_FILE = "results.json"
_SECTIONS = {"model": dict, "settings": dict, "tasks": dict, "cells": list}
_CELL_FIELDS = {"task": str, "shots": int, "seed": int, "samples_sha256": str}


@dataclass(frozen=True)
class RunCell:
    """A scored cell: `record` is its entry in results.json, `name` names its files."""

    task: str
    shots: int
    seed: int
    name: str
    record: Mapping[str, Any]

    @property
    def title(self) -> str:
        """For people: `piqa at 4 shots`."""
        return f"{self.task} at {self.shots} shot" + ("" if self.shots == 1 else "s")


@dataclass(frozen=True)
class RunFolder:
    """A finished run: `document` is results.json, `cells` its cells in order."""

    path: Path
    document: Mapping[str, Any]
    cells: tuple[RunCell, ...]

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run at `path`, a run folder or a model's folder that holds one as `evaluation/`.

        Raises UserError when there is none, it is damaged, or an older version wrote it.
        """
        folder = path if (path / RESULTS_FILE).is_file() else path / "evaluation"
        if not (folder / RESULTS_FILE).is_file():
            raise UserError(f"{path} is not a run folder of `mtnlg evaluate`: there is no {path / RESULTS_FILE}")
        file = folder / RESULTS_FILE
        document = read_json(file)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UserError(f"{file} is not a result of `mtnlg evaluate`: its format is not {FORMAT!r}")
        _check_types(document, _SECTIONS, str(file))
        for number, record in enumerate(document["cells"]):
            _check_types(record, _CELL_FIELDS, f"{file}: cell {number}")
        several = len({record["seed"] for record in document["cells"]}) > 1
        several = several or len(document["settings"].get("seeds", ())) > 1
        return cls(folder, document, tuple(_cell(record, several) for record in document["cells"]))

    def metric(self, task: str) -> str:
        """The metric that the table shows of a task, such as `acc`."""
        return str(self._task(task).get("metric") or "acc")

    def cluster(self, task: str) -> str | None:
        """The row's field that dependent documents of a task share; None where documents are independent."""
        field = self._task(task).get("cluster")
        return None if field is None else str(field)

    def samples(self, cell: RunCell) -> Iterator[dict[str, Any]]:
        """The documents of a cell as lm-eval writes them, line by line, after a check of the whole file.

        Raises UserError when the file is missing or not the one that results.json was written with.
        """
        file = self.samples_file(cell)
        if not file.is_file():
            raise UserError(f"{file} is missing: evaluate {cell.task} again, or copy the whole run folder")
        if sha256_file(file) != cell.record["samples_sha256"]:
            raise UserError(
                f"{file} is damaged or edited: its SHA-256 is not the one in {self.path / RESULTS_FILE}; "
                f"evaluate {cell.task} again"
            )
        # By lines of the file: str.splitlines would also break at separators that rows may hold, such as U+2028.
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield _sample(line, f"{file}, line {number}")

    def samples_file(self, cell: RunCell) -> Path:
        """Where the samples of a cell lie."""
        return self.path / "samples" / f"{cell.name}.jsonl"

    def _task(self, task: str) -> Mapping[str, Any]:
        found = self.document["tasks"].get(task)
        return found if isinstance(found, dict) else {}


def _cell(record: Mapping[str, Any], several_seeds: bool) -> RunCell:
    task, shots, seed = record["task"], record["shots"], record["seed"]
    name = f"{task}-{shots}shot" + (f"-seed{seed}" if several_seeds else "")
    return RunCell(task, shots, seed, name, record)


def _check_types(values: Any, types: Mapping[str, type], where: str) -> None:
    for key, kind in types.items():
        if not isinstance(values, dict) or not isinstance(values.get(key), kind):
            raise UserError(
                f"{where} has no {key!r} ({kind.__name__}): it is damaged or of another version; evaluate again"
            )


def _sample(line: str, where: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(sample, dict) or not {"doc_id", "doc"} <= sample.keys():
        raise UserError(f"{where} is not a sample: it has no doc_id or no doc")
    return sample
