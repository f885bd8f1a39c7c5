"""What comparisons and gates print alike."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from evaluation.comparison.paired import PairedCell, PairedRuns
from evaluation.run_folder import RunCell, RunFolder
from evaluation.statistics import PairedDifference

# Where the output is not a terminal, which has a width of its own, lines are as long as they need to be.


def describe_run(run: RunFolder) -> str:
    """One line: where it is, of which model, computed how."""
    model: Mapping[str, Any] = run.document["model"]
    settings: Mapping[str, Any] = run.document["settings"]
    limit = settings.get("limit")
    parts = [
        f"model {model.get('path')}, files {str(model.get('files_sha256'))[:12]}",
        f"{settings.get('backend')} in {settings.get('dtype')}",
        f"the first {limit:,} documents of each task" if limit else "all documents",
    ]
    return f"{run.path}: {'; '.join(parts)}"


def nothing_shared(runs: PairedRuns, paths: tuple[Path, Path]) -> str:
    """Why two runs cannot be compared at all."""
    if not runs.cells:
        return f"{paths[0]} and {paths[1]} have no cell in common: no task at the same number of shots and seed"
    others = sum(cell.other_data for cell in runs.cells)
    why = "rows under the same numbers differ: it is other data" if others else "they scored different ones"
    return f"{paths[0]} and {paths[1]} have no document in common: {why}"


def plain_table(columns: Sequence[str], left: int) -> Table:
    """A table without a frame, its first `left` columns set to the left."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    return table


def cell_columns(cell: RunCell, several_seeds: bool) -> list[str]:
    """Task and shots, with the seed where a run has more than one."""
    return [cell.task, f"{cell.shots}" + (f", seed {cell.seed}" if several_seeds and cell.shots else "")]


def several_seeds(cells: Sequence[PairedCell]) -> bool:
    """Whether seeds tell cells apart."""
    return len({cell.first.seed for cell in cells}) > 1


def documents_text(difference: PairedDifference) -> str:
    """How many documents, and in how many clusters where that is fewer."""
    clusters = f" in {difference.clusters:,}" if difference.clusters < difference.documents else ""
    return f"{difference.documents:,}{clusters}"


def points(fraction: float) -> str:
    """A difference in points, signed."""
    return f"{100 * fraction:+.1f}"


def difference_text(difference: PairedDifference) -> str:
    """A difference with its interval, in points."""
    return f"{points(difference.value)} [{points(difference.low)}, {points(difference.high)}]"


def p_text(p_value: float) -> str:
    """Three digits, which very small values do not reach."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "<0.001"
