"""Accuracy by fields of the rows, such as HANS's heuristics, classes and sub-cases."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evaluation.report.samples import question_of
from evaluation.run_folder import RunCell, RunFolder
from evaluation.statistics import Interval, accuracy_interval


@dataclass(frozen=True)
class GroupAccuracy:
    """In %, the mean over seeds, as the table's cells."""

    shots: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """Documents that agree in the first `depth` fields; `name` is the value of the last of these."""

    depth: int
    name: str
    documents: int
    accuracies: tuple[GroupAccuracy, ...]


@dataclass(frozen=True)
class Breakdown:
    """A task's groups, each before those that it consists of. Those of the last field have depth `len(fields)`."""

    task: str
    fields: tuple[str, ...]
    shots: tuple[int, ...]
    groups: tuple[Group, ...]


_Path = tuple[str, ...]
# By group and number of shots: a list of intervals, one a seed.
_Found = dict[_Path, dict[int, list[Interval]]]


def breakdowns(run: RunFolder) -> list[Breakdown]:
    """Of every task that names fields to break its accuracy down by."""
    found = []
    for task, about in run.document["tasks"].items():
        cells = [cell for cell in run.cells if cell.task == task]
        if cells and about.get("breakdown"):
            found.append(_breakdown(run, task, tuple(about["breakdown"]), cells))
    return found


def _breakdown(run: RunFolder, task: str, fields: tuple[str, ...], cells: list[RunCell]) -> Breakdown:
    found: _Found = {}
    for cell in cells:
        for path, interval in _intervals(run, cell, fields).items():
            found.setdefault(path, {}).setdefault(cell.shots, []).append(interval)
    groups = [_group(path, by_shots) for path, by_shots in found.items()]
    return Breakdown(task, fields, tuple(dict.fromkeys(cell.shots for cell in cells)), tuple(groups))


def _intervals(run: RunFolder, cell: RunCell, fields: tuple[str, ...]) -> dict[_Path, Interval]:
    """By group, parents first, otherwise in the order of the documents."""
    metric, cluster = run.metric(cell.task), run.cluster(cell.task)
    scores: dict[_Path, list[float]] = {}
    clusters: dict[_Path, list[str]] = {}
    for sample in run.samples(cell):
        path = tuple(_value(sample, name, metric) for name in fields)
        for depth in range(1, len(fields) + 1):
            scores.setdefault(path[:depth], []).append(float(sample[metric]))
            clusters.setdefault(path[:depth], []).append(str(sample["doc"].get(cluster)))
    # Sorting by where a path and all its beginnings first stood keeps a group's parts together.
    seen = {path: place for place, path in enumerate(scores)}
    order = sorted(scores, key=lambda path: [seen[path[:depth]] for depth in range(1, len(path) + 1)])
    return {path: accuracy_interval(scores[path], clusters[path] if cluster else None) for path in order}


def _value(sample: Mapping[str, Any], name: str, metric: str) -> str:
    value = sample["doc"].get(name)
    if name == "label" and isinstance(value, int):
        question = question_of(sample, metric)
        if question.right is not None:
            return f"right answer:{question.choices[question.right]}"
    return str(value).replace("_", " ")


def _group(path: _Path, by_shots: Mapping[int, list[Interval]]) -> Group:
    accuracies = tuple(
        GroupAccuracy(
            shots,
            *(100 * fmean(getattr(interval, end) for interval in intervals) for end in ("value", "low", "high")),
        )
        for shots, intervals in by_shots.items()
    )
    documents = next(iter(by_shots.values()))[0].documents
    return Group(len(path), path[-1], documents, accuracies)
