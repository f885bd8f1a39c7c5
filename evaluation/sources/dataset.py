"""A task's splits as lm-eval wants them, and where each was read."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.rows import Row
from evaluation.sources.catalogue import TASK_DATA, GeneratedData, StoredData, TaskData
from evaluation.sources.readers import has_split, open_split
from foundation.errors import UserError


@dataclass(frozen=True)
class SplitSource:
    """Where a split was read: `kind` is folder, hub, package or generated; `files` maps names to SHA-256, where known.

    `rows_sha256` is over the rows as the prompts see them, so equal data has equal hashes from any source.
    `notes` say what a result on these rows must not be taken for.
    """

    kind: str
    name: str
    files: dict[str, str | None]
    rows: int
    rows_sha256: str
    notes: list[str] = field(default_factory=list)


class TaskDataset(dict[str, Any]):
    """A task's splits, as lm-eval wants them, each read when it is first asked for.

    `sources` says where each split that was read came from. Without `few_shot` the training split is empty,
    and its data need not exist: lm-eval asks for it in any case.
    """

    def __init__(
        self, task: str, folder: Path | None, *, few_shot: bool = True, catalogue: Mapping[str, TaskData] = TASK_DATA
    ) -> None:
        super().__init__()
        self.sources: dict[str, SplitSource] = {}
        self._task = task
        self._data = catalogue[task]
        self._folder = folder
        if not few_shot:
            from datasets import Dataset

            self["train"] = Dataset.from_list([])

    @property
    def examples_split(self) -> str:
        """Where few-shot examples come from: the first of the task's splits for them that the source has."""
        *preferred, last = self._data.examples
        return next((name for name in preferred if name in self or has_split(self._data, name, self._folder)), last)

    def __missing__(self, split: str) -> Any:
        """Read a split into a `datasets.Dataset`. Raises UserError when its data cannot be had."""
        from datasets import Dataset

        opened = open_split(self._task, self._data, split, self._folder)
        files = ", ".join(opened.files)
        try:
            rows = list(self._rows(opened.records))
        except (KeyError, ValueError, TypeError, OSError, SyntaxError) as error:
            # OSError and ValueError: gzip and JSON report damage with them.
            problem = f"no field {error}" if isinstance(error, KeyError) else f"{error}"
            raise UserError(f"{files}: not {self._task} data: {problem}") from None
        if not rows:
            raise UserError(f"{files} holds no rows")
        digest = rows_sha256(rows)
        notes = self._notes(split, opened.files, len(rows), digest)
        self.sources[split] = SplitSource(opened.kind, opened.name, opened.files, len(rows), digest, notes)
        self[split] = Dataset.from_list(rows)
        return self[split]

    def _rows(self, records: Iterable[Mapping[str, Any]]) -> Iterable[Row]:
        return records if isinstance(self._data, GeneratedData) else self._data.rows(records)  # type: ignore[return-value]

    def _notes(self, split: str, files: Iterable[str], count: int, digest: str) -> list[str]:
        if not isinstance(self._data, StoredData):
            return []
        notes = [note for file in files for part, note in self._data.file_notes.items() if part in file]
        notes += [self._data.rows_notes[digest]] if digest in self._data.rows_notes else []
        official = self._data.official_rows[split]
        if count != official and not notes:
            notes.append(f"{count:,} {split} rows, not the official {official:,}")
        return notes


def open_task_data(task: str, data: str | None = None, few_shot: bool = True, **_metadata: object) -> TaskDataset:
    """The data of one of the catalogue's tasks; `data` is a folder in the layout of docs/evaluation.md.

    lm-eval passes everything in the task file's `metadata` too, which is of no use here.
    """
    return TaskDataset(task, Path(data) if data else None, few_shot=few_shot)


def rows_sha256(rows: Iterable[Row]) -> str:
    """SHA-256 of rows as JSON lines with sorted keys."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()
