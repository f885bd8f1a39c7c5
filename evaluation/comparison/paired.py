"""Two runs side by side: the cells that both have, and in each the documents that both scored."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.run_folder import RunCell, RunFolder
from evaluation.statistics import PairedDifference, paired_difference
from foundation.errors import UserError


@dataclass(frozen=True)
class PairedCell:
    """One cell in two runs: `accuracies` over the documents that both scored, `difference` None if there is none.

    `gained` and `lost` are the documents that only the second, or only the first, got right. Documents are found by
    number; `other_data` counts those whose rows differ, `only_first` and `only_second` those that one run has.
    """

    first: RunCell
    second: RunCell
    metric: str
    accuracies: tuple[float, float]
    difference: PairedDifference | None
    gained: tuple[int, ...]
    lost: tuple[int, ...]
    only_first: int
    only_second: int
    other_data: int

    @property
    def title(self) -> str:
        """For people: `piqa at 4 shots`."""
        return self.first.title

    @property
    def documents(self) -> int:
        """How many documents are compared."""
        return self.difference.documents if self.difference else 0

    def notes(self, names: tuple[str, str]) -> list[str]:
        """What a reader must know before believing the comparison; `names` are the runs'."""
        one, other = names
        notes = []
        if self.other_data:
            notes.append(f"documents left out because {one} and {other} hold other rows: {self.other_data:,}")
        if self.only_first or self.only_second:
            only = [(count, name) for count, name in zip((self.only_first, self.only_second), names, strict=True)]
            lacking = "; ".join(f"documents only in {name}: {count:,}" for count, name in only if count)
            notes.append(f"{lacking}; compared: {self.documents:,}")
        if self.first.record.get("prompts_sha256") != self.second.record.get("prompts_sha256") and not notes:
            notes.append("the prompts differ, other examples or wording before the same questions")
        return [f"{self.title}: {note}" for note in notes]


@dataclass(frozen=True)
class PairedRuns:
    """The cells of both runs, in the first's order, and those that one run alone has."""

    cells: tuple[PairedCell, ...]
    only_first: tuple[RunCell, ...]
    only_second: tuple[RunCell, ...]


@dataclass(frozen=True)
class _Scored:
    row: bytes
    score: float
    cluster: bytes | int


def pair_runs(first: RunFolder, second: RunFolder, task: str | None = None) -> PairedRuns:
    """Match the cells of two runs by task, shots and seed (not at zero shots, where nothing is drawn).

    `task` leaves one task alone. Raises UserError when there is nothing to compare or samples are damaged.
    """
    found = _by_key(first, task), _by_key(second, task)
    if task is not None and not (found[0] or found[1]):
        tasks = sorted({cell.task for run in (first, second) for cell in run.cells})
        raise UserError(f"neither run has a task {task!r}; they have: {', '.join(tasks)}")
    return PairedRuns(
        tuple(pair_cell(first, cell, second, found[1][key]) for key, cell in found[0].items() if key in found[1]),
        tuple(cell for key, cell in found[0].items() if key not in found[1]),
        tuple(cell for key, cell in found[1].items() if key not in found[0]),
    )


def pair_cell(first: RunFolder, cell: RunCell, second: RunFolder, other: RunCell) -> PairedCell:
    """Compare a cell document by document, by the first run's metric and clusters."""
    metric, cluster = first.metric(cell.task), first.cluster(cell.task)
    before = _scores(first, cell, metric, cluster)
    after = _scores(second, other, metric, cluster)
    shared = [number for number in before if number in after]
    common = [number for number in shared if before[number].row == after[number].row]
    scores = [before[number].score for number in common], [after[number].score for number in common]
    difference, accuracies = None, (0.0, 0.0)
    if common:
        clusters = None if cluster is None else [before[number].cluster for number in common]
        difference = paired_difference(*scores, clusters)
        accuracies = sum(scores[0]) / len(common), sum(scores[1]) / len(common)
    return PairedCell(
        first=cell,
        second=other,
        metric=metric,
        accuracies=accuracies,
        difference=difference,
        gained=_where(common, *scores),
        lost=_where(common, *reversed(scores)),
        only_first=len(before) - len(shared),
        only_second=len(after) - len(shared),
        other_data=len(shared) - len(common),
    )


def _by_key(run: RunFolder, task: str | None) -> dict[tuple[str, int, int | None], RunCell]:
    cells: dict[tuple[str, int, int | None], RunCell] = {}
    for cell in run.cells:
        if task in (None, cell.task):
            cells.setdefault((cell.task, cell.shots, cell.seed if cell.shots else None), cell)
    return cells


def _scores(run: RunFolder, cell: RunCell, metric: str, cluster: str | None) -> dict[int, _Scored]:
    """Of each document, by its number, no more than the comparison takes: rows are long."""
    scores = {}
    for sample in run.samples(cell):
        row = sample["doc"]
        value = sample.get(metric)
        if not isinstance(row, dict) or value not in (0, 1):
            raise UserError(
                f"{run.samples_file(cell)}: document {sample['doc_id']} has no row or no {metric!r} of 0 or 1"
            )
        if cluster is not None and cluster not in row:
            raise UserError(
                f"{run.samples_file(cell)}: document {sample['doc_id']} has no {cluster!r}, by which {cell.task}'s "
                "documents belong together"
            )
        identity = _digest(row)
        scores[sample["doc_id"]] = _Scored(identity, float(value), _digest(row[cluster]) if cluster else identity)
    return scores


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def _where(documents: Sequence[int], low: Sequence[float], high: Sequence[float]) -> tuple[int, ...]:
    """The documents that score more in the second list."""
    return tuple(number for number, one, other in zip(documents, low, high, strict=True) if other > one)
