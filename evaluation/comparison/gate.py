"""`mtnlg evaluate gate`: whether a run is worse than a baseline, and what the test could have noticed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from evaluation.comparison.paired import PairedCell, pair_runs
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
from evaluation.run_folder import RunFolder
from evaluation.statistics import detectable_drop, holm
from foundation.console import table_console
from foundation.errors import UserError

_POWER = 0.8

FOOTNOTE = (
    "Accuracies in %, run - baseline in points with its 95 % interval, over the documents of both (in clusters).\n"
    "Holm: p of McNemar's exact test with mid-p, by cluster where documents share one, one-sided against a worse run, "
    "corrected for {tests} cells.\n"
    "noticeable: the drop in points that this test would find in {power:.0%} of such comparisons; a smaller one may "
    "have passed."
)


@dataclass(frozen=True)
class Verdict:
    """A cell of the baseline judged: `failure` says why it fails, "" where it passes.

    `p_holm` is None where no document could be compared; `detectable` is a fraction, None where no result could have
    been significant.
    """

    cell: PairedCell
    p_holm: float | None
    detectable: float | None
    failure: str


def gate(run: Path, baseline: Path, *, alpha: float = 0.05, tolerance: float = 0.0) -> bool:
    """Print a verdict on every cell of the baseline; whether the run passes all.

    A cell fails when the run's accuracy is significantly lower, one-sided at `alpha` after Holm's correction, and by
    more than `tolerance` points; when documents hold other data; or when the run lacks it. Where the
    models are equally good, it fails with probability of about `alpha`, over all cells together. Raises UserError when
    either is no run folder, samples are damaged, or an option makes no sense.
    """
    if not 0 < alpha < 1:
        raise UserError(f"--alpha {alpha}: a significance level lies between 0 and 1, such as 0.05")
    if not 0 <= tolerance < 100:
        raise UserError(f"--tolerance {tolerance}: expected points from 0 up to 100, such as 0.5")
    base, candidate = RunFolder.open(baseline), RunFolder.open(run)
    runs = pair_runs(base, candidate)
    if not base.cells:
        raise UserError(f"{baseline} holds no cell: there is nothing to compare with")
    if not any(cell.difference for cell in runs.cells):
        raise UserError(nothing_shared(runs, (baseline, run)))
    verdicts = judge(runs.cells, alpha, tolerance)
    console = table_console()
    console.print(f"run       {describe_run(candidate)}\nbaseline  {describe_run(base)}\n")
    console.print(_table(verdicts))
    console.print(FOOTNOTE.format(tests=_tested(verdicts), power=_POWER))
    for cell in runs.cells:
        for note in cell.notes(("the baseline", "the run")):
            console.print(note)
    failures = [f"{verdict.cell.title}: {verdict.failure}" for verdict in verdicts if verdict.failure]
    failures += [f"{cell.title}: the run lacks it" for cell in runs.only_first]
    console.print()
    for failure in failures:
        console.print(f"FAILED  {failure}")
    console.print(_conclusion(verdicts, failures, alpha))
    return not failures


def judge(cells: Sequence[PairedCell], alpha: float, tolerance: float) -> list[Verdict]:
    """A verdict a cell; `tolerance` in points."""
    tested = [cell.difference for cell in cells if cell.difference]
    adjusted = iter(holm([difference.p_worse for difference in tested]))
    verdicts = []
    for cell in cells:
        if cell.difference is None:
            verdicts.append(Verdict(cell, None, None, "no document is the same as in the baseline"))
            continue
        p_holm, drop = next(adjusted), -100 * cell.difference.value
        failure = ""
        if cell.other_data:
            failure = f"documents whose rows are not the baseline's: {cell.other_data:,}"
        elif p_holm < alpha and drop > tolerance:
            failure = f"{drop:.1f} points worse, p {p_text(p_holm)}"
        # The level that Holm's first step gives a single cell.
        verdicts.append(Verdict(cell, p_holm, detectable_drop(cell.difference, alpha / len(tested), _POWER), failure))
    return verdicts


def _tested(verdicts: Sequence[Verdict]) -> int:
    return sum(verdict.p_holm is not None for verdict in verdicts)


def _table(verdicts: Sequence[Verdict]) -> Table:
    columns = ["task", "shots", "documents", "run", "baseline", "run - baseline", "Holm", "noticeable", "verdict"]
    table = plain_table(columns, left=1)
    seeds = several_seeds([verdict.cell for verdict in verdicts])
    for verdict in verdicts:
        difference, row = verdict.cell.difference, cell_columns(verdict.cell.first, seeds)
        if difference is None or verdict.p_holm is None:
            table.add_row(*row, "0", *["-"] * 5, "FAILED")
            continue
        table.add_row(
            *row,
            documents_text(difference),
            *(f"{100 * accuracy:.1f}" for accuracy in reversed(verdict.cell.accuracies)),
            difference_text(difference),
            p_text(verdict.p_holm),
            "none" if verdict.detectable is None else f"{100 * verdict.detectable:.1f}",
            "FAILED" if verdict.failure else "passed",
        )
    return table


def _conclusion(verdicts: Sequence[Verdict], failures: Sequence[str], alpha: float) -> str:
    if failures:
        return f"gate failed; failed cells: {len(failures)}"
    blind = [verdict.cell.title for verdict in verdicts if verdict.detectable is None]
    drops = [verdict.detectable for verdict in verdicts if verdict.detectable is not None]
    text = f"gate passed: no cell of {len(verdicts)} is significantly worse at {alpha}"
    if drops:
        text += f"; drops below {100 * min(drops):.1f} to {100 * max(drops):.1f} points, by cell, may have passed"
    if blind:
        text += f"; too few documents to notice any drop: {', '.join(blind)}"
    return text
