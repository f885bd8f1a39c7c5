"""Accuracy against the number of shots: the geometry of one small chart a row of the table, in SVG's pixels."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.report.published import SETTINGS, Published, published_in
from evaluation.report.table import Ours, ReportRow, ours_text, report_rows

WIDTH, HEIGHT = 320, 220
# Room for the axes' labels, and left and right for the marks beside a number of shots.
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 26, 12, 30
# Published figures stand beside their number of shots, so that equal ones do not hide each other or ours.
_ASIDE = (-7, 7, -14, 14)
# Labels of the horizontal axis stand at least so far apart.
_LABEL_GAP = 15


@dataclass(frozen=True)
class Mark:
    """A published figure; `model` is its place among the published models. Hollow: at an unknown number of shots."""

    x: float
    y: float
    model: int
    hollow: bool
    title: str


@dataclass(frozen=True)
class Point:
    """A cell of ours with its interval's ends."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Curve:
    """A row's chart. Ticks are (pixel, label); `chance` and `supervised` are heights or None."""

    title: str
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    chance: float | None
    supervised: float | None
    description: str


def curves(document: Mapping[str, Any], chance: Mapping[str, float]) -> list[Curve]:
    """A chart for each row that has a scored cell; `chance` is the accuracy of guessing by task, in %."""
    published = published_in(document)
    rows = zip(document["table"]["rows"], report_rows(document), strict=True)
    return [_curve(shown, published, held["published"], chance) for held, shown in rows if any(shown.ours)]


def _curve(row: ReportRow, published: Published, key: str | None, chance: Mapping[str, float]) -> Curve:
    ours = sorted((cell for cell in row.ours if cell), key=lambda cell: cell.examples)
    most = max(shots for _, shots in row.cells)
    figures = list(_figures(published, key, most))
    guess = next((chance[task] for task, _ in row.cells if task in chance), None)
    best = row.supervised.accuracy if row.supervised else None
    heights = [height for cell in ours for height in (cell.low, cell.high)] + [figure[2] for figure in figures]
    scale = _Scale.around([*heights, *(height for height in (guess, best) if height is not None)])
    counts = {cell.examples for cell in ours} | {figure[1] for figure in figures}
    across = math.log2(1 + max(counts | {1}))

    def x(shots: float) -> float:
        return round(_LEFT + math.log2(1 + shots) / across * (WIDTH - _LEFT - _RIGHT), 1)

    return Curve(
        title=row.title,
        points=tuple(_point(cell, x(cell.examples), scale) for cell in ours),
        marks=tuple(
            Mark(x(shots) + _ASIDE[model % 4], scale.y(value), model, hollow, text)
            for model, shots, value, hollow, text in figures
        ),
        x_ticks=_x_ticks((x(count), str(count)) for count in sorted(counts)),
        y_ticks=scale.ticks(),
        chance=None if guess is None else scale.y(guess),
        supervised=None if best is None else scale.y(best),
        description="; ".join(f"{cell.examples}-shot {ours_text(cell)} %" for cell in ours),
    )


def _figures(published: Published, key: str | None, most: int) -> Iterable[tuple[int, int, float, bool, str]]:
    """Model, shots, accuracy, whether the shots are not known, and a text."""
    for place, model in enumerate(published.models):
        task = model.tasks.get(key) if key else None
        for setting in SETTINGS if task else ():
            accuracy = task.accuracy(setting) if task else None
            if task is None or accuracy is None:
                continue
            shots = task.shots(setting)
            about = "number of shots not known" if shots is None else f"{shots}-shot"
            yield (
                place,
                max(most, 2) if shots is None else shots,
                accuracy,
                shots is None,
                f"{model.name}, {about}: {accuracy} %",
            )


@dataclass(frozen=True)
class _Scale:
    """The vertical axis, in % accuracy."""

    bottom: float
    top: float

    @classmethod
    def around(cls, values: list[float]) -> "_Scale":
        # A little room, so that no line lies on the axis.
        bottom, top = 10 * math.floor((min(values) - 2) / 10), 10 * math.ceil((max(values) + 2) / 10)
        return cls(max(0, bottom), min(100, top) if top > bottom else bottom + 10)

    def y(self, value: float) -> float:
        height = HEIGHT - _TOP - _BOTTOM
        return round(_TOP + (self.top - value) / (self.top - self.bottom) * height, 1)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        step = 10 if self.top - self.bottom <= 50 else 20
        values = range(math.ceil(self.bottom / step) * step, int(self.top) + 1, step)
        return tuple((self.y(value), str(value)) for value in values)


def _point(cell: Ours, x: float, scale: _Scale) -> Point:
    title = f"{cell.examples}-shot: {ours_text(cell)} %"
    return Point(x, scale.y(cell.value), scale.y(cell.low), scale.y(cell.high), title)


def _x_ticks(labels: Iterable[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    kept: list[tuple[float, str]] = []
    for place, label in labels:
        if not kept or place - kept[-1][0] >= _LABEL_GAP:
            kept.append((place, label))
    return tuple(kept)
