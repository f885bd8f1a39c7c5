"""The grid's cells, one a task and number of shots: scored once, kept on disk, found again by their key."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import read_json, sha256_file, write_json, write_text


@dataclass(frozen=True)
class Cell:
    """One task at one number of shots; `determinants` are all that its result depends on."""

    task: str
    shots: int
    determinants: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.task}-{self.shots}shot"

    @property
    def key(self) -> str:
        """SHA-256 of the determinants."""
        return hashlib.sha256(json.dumps(self.determinants, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CellResult:
    """A scored cell. `lm_eval` is lm-eval's result object for this task alone, without samples."""

    task: str
    shots: int
    key: str
    lm_eval: dict[str, Any]
    usage: dict[str, int]
    seconds: float
    samples_sha256: str = field(default="")

    def metric(self, name: str) -> float:
        """A metric's value, such as `acc`, as a fraction."""
        return float(self.lm_eval["results"][self.task][f"{name},none"])

    def stderr(self, name: str) -> float | None:
        """A metric's standard error; None where lm-eval has none (a single document)."""
        value = self.lm_eval["results"][self.task][f"{name}_stderr,none"]
        return None if value == "N/A" else float(value)


class CellStore:
    """Finished cells in a results folder: `samples/<cell>.jsonl`, then `cells/<cell>.json`, which commits it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, cell: Cell) -> CellResult | None:
        """The stored result of exactly this cell, or None: absent, of other settings, or damaged."""
        path, samples = self._paths(cell)
        if not path.is_file() or not samples.is_file():
            return None
        try:
            stored = CellResult(**read_json(path))
        except (TypeError, UserError):
            return None
        whole = stored.key == cell.key and stored.samples_sha256 == sha256_file(samples)
        return stored if whole else None

    def save(self, cell: Cell, samples: list[dict[str, Any]], result: CellResult) -> CellResult:
        """Write the per-document samples and the result; a reader sees the cell whole or not at all."""
        path, samples_path = self._paths(cell)
        path.unlink(missing_ok=True)
        write_text(samples_path, "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples))
        stored = CellResult(**{**asdict(result), "samples_sha256": sha256_file(samples_path)})
        write_json(path, asdict(stored))
        return stored

    def _paths(self, cell: Cell) -> tuple[Path, Path]:
        return self._folder / "cells" / f"{cell.name}.json", self._folder / "samples" / f"{cell.name}.jsonl"
