"""The grid's cells, one a task and number of shots: scored once, kept on disk, found again by their key."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from evaluation.score_store import ScoreStore
from foundation.errors import UserError
from foundation.files import read_json, sha256_file, write_json, write_text


@dataclass(frozen=True)
class Cell:
    """One task at one number of shots and seed; `determinants` are all that its result depends on.

    `name` names its files. `score_determinants` are what a request's score depends on, whatever task asks.
    """

    name: str
    task: str
    shots: int
    seed: int
    determinants: dict[str, Any]
    score_determinants: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """SHA-256 of the determinants."""
        return hashlib.sha256(json.dumps(self.determinants, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CellResult:
    """A scored cell. `lm_eval` is lm-eval's result object for this task alone, without samples.

    `examples` is how many stood before each question: `shots`, or fewer where the context is short. `accuracy` is an
    `evaluation.statistics.Interval`, 95 %.
    """

    task: str
    shots: int
    seed: int
    key: str
    examples: int
    accuracy: dict[str, Any]
    usage: dict[str, Any]
    prompts_sha256: str
    lm_eval: dict[str, Any]
    samples_sha256: str = ""


class CellStore:
    """Cells in a results folder: `scores/<cell>.jsonl` as they come; finished, `samples/<cell>.jsonl` and then
    `cells/<cell>.json`, which commits it."""

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
        stored = replace(result, samples_sha256=sha256_file(samples_path))
        write_json(path, asdict(stored))
        return stored

    def scores(self, cell: Cell) -> ScoreStore:
        """The cell's scores so far, to be closed by the caller."""
        return ScoreStore(self._folder / "scores" / f"{cell.name}.jsonl", cell.score_determinants)

    def _paths(self, cell: Cell) -> tuple[Path, Path]:
        return self._folder / "cells" / f"{cell.name}.json", self._folder / "samples" / f"{cell.name}.jsonl"
