"""What a run shows while it works: the table as cells finish, and a bar over the whole grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evaluation.grid import Cell
from evaluation.report.reports import rich_table


class GridDisplay:
    """A live table and one progress bar; where there is no terminal, a line a cell and the last table.

    `document` is results.json without its cells; `work` is how much each cell takes, in any unit, by its name, so that
    the remaining time is right across the grid.
    """

    def __init__(self, document: Mapping[str, Any], work: Mapping[str, float]) -> None:
        self._console = Console()
        self._document = document
        self._work = work
        self._cells: list[dict[str, Any]] = []
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
        )
        self._bar = self._progress.add_task("evaluating", total=sum(work.values()))
        self._live = Live(self._picture(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "GridDisplay":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if kind is None:
            self._console.print(self._table())

    def begin(self, cell: Cell) -> None:
        """Name the cell at work beside the bar."""
        self._progress.update(self._bar, description=cell.name)

    def advance(self, share: float, cell: Cell) -> None:
        """Move the bar by a share of the cell's work."""
        self._progress.advance(self._bar, share * self._work[cell.name])

    def finish(self, cell: Cell, entry: dict[str, Any], *, reused: bool) -> None:
        """Show a cell's entry in results.json; one that was reused takes no time, so its work leaves the estimate."""
        self._cells.append(entry)
        if reused:
            total = self._progress.tasks[0].total or 0.0
            self._progress.update(self._bar, total=total - self._work[cell.name])
        if not self._console.is_terminal:
            accuracy, usage = entry["accuracy"], entry["usage"]
            how = "kept from an earlier run" if reused else f"{usage['seconds']:.1f} s, {_saved(usage)}"
            self._console.print(f"{cell.name}: {100 * accuracy['value']:.1f} % ({how})")
        self._live.update(self._picture())

    def _table(self) -> Table:
        return rich_table({**self._document, "cells": self._cells})

    def _picture(self) -> Group:
        return Group(self._table(), self._progress)


def _saved(usage: Mapping[str, Any]) -> str:
    asked, computed = usage["tokens_asked"], max(1, usage["tokens_computed"])
    return f"{computed} of {asked} tokens computed, {asked / computed:.1f} times fewer"


def show_end(notes: Sequence[str], files: Sequence[Path]) -> None:
    """What to know about the table above, and where everything is."""
    console = Console(highlight=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False)
    console.print(f"Results: {', '.join(map(str, files))}", markup=False)
