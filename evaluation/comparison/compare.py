"""`mtnlg evaluate compare`: two runs cell by cell, how sure each difference is, and the documents behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from evaluation.comparison.flips import find_flips, flip_lines
from evaluation.comparison.paired import PairedCell, PairedRuns, pair_runs
from evaluation.comparison.paired_text import (
    cell_columns,
    describe_run,
    difference_text,
    documents_text,
    nothing_shared,
    p_text,
    plain_table,
    several_seeds,
)
from evaluation.run_folder import RunCell, RunFolder
from evaluation.statistics import holm
from foundation.console import table_console
from foundation.errors import UserError
from foundation.files import write_json

_ALPHA = 0.05
_ABSENT = "-"

FOOTNOTE = (
    "Accuracies in %, B - A in points with its 95 % interval, over the documents of both runs (and their clusters).\n"
    "right in A, in B: documents that only that run got right. p: McNemar's exact test with mid-p, by cluster where "
    "documents share one.\nHolm: the same p corrected for {tests} cells, * below {alpha}."
)


def compare(
    run_a: Path, run_b: Path, *, task: str | None = None, flips: int = 0, json_path: Path | None = None
) -> bool:
    """Print how two runs differ on the documents that both scored; whether no cell differs significantly.

    At most `flips` documents a cell that changed sides are shown, those whose answers' scores moved most. `json_path`
    receives everything as JSON, all flipped documents included. Raises UserError when either is no run folder, its
    samples are damaged, or nothing can be compared.
    """
    first, second = RunFolder.open(run_a), RunFolder.open(run_b)
    runs = pair_runs(first, second, task)
    if not any(cell.difference for cell in runs.cells):
        raise UserError(nothing_shared(runs, (run_a, run_b)))
    adjusted = _adjusted(runs.cells)
    console = table_console()
    for name, run in (("A", first), ("B", second)):
        console.print(f"{name}  {describe_run(run)}")
    console.print()
    console.print(_table(runs.cells, adjusted))
    console.print(FOOTNOTE.format(tests=len(adjusted), alpha=_ALPHA))
    for line in _notes(runs):
        console.print(line)
    for cell in runs.cells:
        found = find_flips(first, second, cell, flips)
        if found:
            changed = len(cell.gained) + len(cell.lost)
            console.print(f"\n{cell.title}: {len(found)} of {changed:,} documents that changed sides")
        for flip in found:
            console.print(flip_lines(flip, cell))
    significant = [p_value < _ALPHA for p_value in adjusted.values()]
    console.print(f"\ncells that differ significantly: {sum(significant)} of {len(significant)}")
    if json_path is not None:
        write_json(json_path, _document((first, second), runs, adjusted))
        console.print(f"written: {json_path}")
    return not any(significant)


def _adjusted(cells: Sequence[PairedCell]) -> dict[int, float]:
    """Holm's p-value by the cell's place, of the cells that could be compared."""
    tested = {place: cell.difference.p_value for place, cell in enumerate(cells) if cell.difference}
    return dict(zip(tested, holm(list(tested.values())), strict=True))


def _table(cells: Sequence[PairedCell], adjusted: Mapping[int, float]) -> Table:
    columns = ["task", "shots", "documents", "A", "B", "B - A", "right in A", "in B", "p", "Holm"]
    table, seeds = plain_table(columns, left=1), several_seeds(cells)
    for place, cell in enumerate(cells):
        row = cell_columns(cell.first, seeds)
        difference = cell.difference
        if difference is None:
            table.add_row(*row, "0", *[_ABSENT] * 7)
            continue
        mark = "*" if adjusted[place] < _ALPHA else " "
        table.add_row(
            *row,
            documents_text(difference),
            *(f"{100 * accuracy:.1f}" for accuracy in cell.accuracies),
            difference_text(difference),
            f"{difference.lost:,}",
            f"{difference.gained:,}",
            p_text(difference.p_value),
            p_text(adjusted[place]) + mark,
        )
    return table


def _notes(runs: PairedRuns) -> list[str]:
    notes = [note for cell in runs.cells for note in cell.notes(("A", "B"))]
    for name, cells in (("A", runs.only_first), ("B", runs.only_second)):
        if cells:
            notes.append(f"only in {name}: {', '.join(cell.title for cell in cells)}")
    return notes


def _document(folders: tuple[RunFolder, RunFolder], runs: PairedRuns, adjusted: Mapping[int, float]) -> dict[str, Any]:
    first, second = (
        {"path": str(run.path), "model": run.document["model"], "settings": run.document["settings"]} for run in folders
    )
    return {
        "format": "mtnlg-evaluation-comparison",
        "a": first,
        "b": second,
        "cells": [_cell_record(cell, adjusted.get(place)) for place, cell in enumerate(runs.cells)],
        "only_in_a": [_key(cell) for cell in runs.only_first],
        "only_in_b": [_key(cell) for cell in runs.only_second],
    }


def _cell_record(cell: PairedCell, p_holm: float | None) -> dict[str, Any]:
    return {
        **_key(cell.first),
        "metric": cell.metric,
        "accuracy": dict(zip("ab", cell.accuracies, strict=True)) if cell.difference else None,
        "difference": vars(cell.difference) if cell.difference else None,
        "p_holm": p_holm,
        "right_in_a_only": list(cell.lost),
        "right_in_b_only": list(cell.gained),
        "documents_only_in_a": cell.only_first,
        "documents_only_in_b": cell.only_second,
        "documents_of_other_data": cell.other_data,
    }


def _key(cell: RunCell) -> dict[str, Any]:
    return {"task": cell.task, "shots": cell.shots, "seed": cell.seed}
