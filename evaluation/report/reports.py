"""Reports of a run folder: the table in four forms, and a page to look through."""

from pathlib import Path

from evaluation.report.formats import csv_table, latex_table, markdown_table, rich_table
from evaluation.report.published import published_accuracies
from evaluation.run_folder import RunFolder
from foundation.files import write_text

__all__ = ["published_accuracies", "rich_table", "write_reports"]


def write_reports(folder: Path) -> list[Path]:
    """Write table.md, table.csv, table.tex and report.html from results.json and the samples beside it.

    Raises UserError when the folder holds no run or is damaged.
    """
    from evaluation.report.html import html_report

    run = RunFolder.open(folder)
    texts = {
        "table.md": markdown_table(run.document),
        "table.csv": csv_table(run.document),
        "table.tex": latex_table(run.document),
        "report.html": html_report(run),
    }
    for name, text in texts.items():
        write_text(run.path / name, text)
    return [run.path / name for name in texts]
