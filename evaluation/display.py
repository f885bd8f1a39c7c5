"""What a run shows while it works: the table as cells finish, and a bar over the whole grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evaluation.grid import Cell, CellResult
from evaluation.report import rich_table


class GridDisplay:
    """A live table and one progress bar; where there is no terminal, a line a cell and the last table.

    `work` is how much each cell takes, in any unit, so that the remaining time is right across the grid.
    """

    def __init__(self, tasks: Sequence[str], shots: Sequence[int], work: Mapping[str, float]) -> None:
        self._console = Console()
        self._axes = (tasks, shots)
        self._work = work
        self._results: dict[tuple[str, int], CellResult] = {}
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
            self._console.print(rich_table(*self._axes, self._results))

    def begin(self, cell: Cell) -> None:
        """Name the cell at work beside the bar."""
        self._progress.update(self._bar, description=cell.name)

    def advance(self, share: float, cell: Cell) -> None:
        """Move the bar by a share of the cell's work."""
        self._progress.advance(self._bar, share * self._work[cell.name])

    def finish(self, cell: Cell, result: CellResult, *, reused: bool) -> None:
        """Show a cell's result; one that was reused takes no time, so its work leaves the estimate."""
        self._results[cell.task, cell.shots] = result
        if reused:
            total = self._progress.tasks[0].total or 0.0
            self._progress.update(self._bar, total=total - self._work[cell.name])
        if not self._console.is_terminal:
            how = "kept from an earlier run" if reused else f"{result.seconds:.1f} s"
            self._console.print(f"{cell.name}: acc {100 * result.metric('acc'):.1f} % ({how})")
        self._live.update(self._picture())

    def _picture(self) -> Group:
        return Group(rich_table(*self._axes, self._results), self._progress)


def show_end(notes: Sequence[str], folder: Path) -> None:
    """What to know about the table above, and where everything is."""
    console = Console(highlight=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False)
    console.print(f"Results: {folder / 'results.json'}, {folder / 'table.md'}", markup=False)
