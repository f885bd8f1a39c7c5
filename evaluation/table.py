"""The table's rows and columns, and the cells that they are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """A row: a cell a column, each a task at a number of shots; `published` is the task's name in published.yaml."""

    title: str
    cells: tuple[tuple[str, int], ...]
    published: str | None


@dataclass(frozen=True)
class Table:
    """What a run fills."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Every task and number of shots once, in reading order."""
        return list(dict.fromkeys(cell for row in self.rows for cell in row.cells))

    @property
    def tasks(self) -> list[str]:
        """Every task once."""
        return list(dict.fromkeys(task for task, _ in self.cells))

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "Table":
        """From results.json."""
        rows = [
            Row(row["title"], tuple((task, shots) for task, shots in row["cells"]), row["published"])
            for row in held["rows"]
        ]
        return cls(tuple(held["columns"]), tuple(rows))

    def as_json(self) -> dict[str, Any]:
        """For results.json."""
        rows = [{**asdict(row), "cells": [list(cell) for cell in row.cells]} for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}


def table_of(tasks: Sequence[str], shots: Sequence[int]) -> Table:
    """A row a task, a column a number of shots."""
    counts = list(dict.fromkeys(shots))
    rows = [Row(task, tuple((task, count) for count in counts), task) for task in dict.fromkeys(tasks)]
    return Table(tuple(f"{count}-shot" for count in counts), tuple(rows))
