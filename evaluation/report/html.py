"""report.html: one file that asks nothing of the network, for a run's table, charts, breakdowns and samples."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evaluation.report.breakdown import breakdowns
from evaluation.report.curves import HEIGHT, WIDTH, curves
from evaluation.report.formats import model_line
from evaluation.report.notes import legend, notes
from evaluation.report.samples import MOST_CHARACTERS, MOST_SAMPLES, Browsable, browsable_cell
from evaluation.report.table import ours_parts, report_rows, supervised_text, theirs_text, title_of
from evaluation.run_folder import RunFolder
from foundation.html_page import content_policy, page_script, page_style, page_templates

_FOLDER = Path(__file__).resolve().parent


def html_report(run: RunFolder) -> str:
    """The page. Every text of the run is escaped by the template; scripts and styles run by their hash alone."""
    document = run.document
    browsable = _browsable(run)
    style, script = page_style(_FOLDER / "report.css"), page_script(_FOLDER / "report.js")
    rows = report_rows(document)
    return (
        page_templates(_FOLDER, (ours_parts, theirs_text, supervised_text, title_of))
        .get_template("report.html")
        .render(
            policy=content_policy(style, script),
            style=style,
            script=script,
            document=document,
            title=f"{document['suite'] or 'evaluation'}: {document['model']['path']}",
            summary=model_line(document),
            rows=rows,
            supervised=any(row.supervised for row in rows),
            sample_cells=_first_cells(run),
            legend=legend(rows),
            notes=notes(document),
            curves=curves(document, _chance(browsable)),
            chart=(WIDTH, HEIGHT),
            models=[model["name"] for model in document["published"]["models"]],
            breakdowns=breakdowns(run),
            cells=run.cells,
            browsable=browsable.as_json(),
            most=(MOST_SAMPLES, MOST_CHARACTERS),
            facts=list(_facts(document)),
        )
    )


def _browsable(run: RunFolder) -> Browsable:
    found = Browsable()
    bare: dict[str, dict[int, str]] = {}
    # Zero-shot first: its prompts tell where the examples end in the others.
    places = {task: place for place, task in enumerate(run.document["tasks"])}
    for cell in sorted(run.cells, key=lambda cell: (places.get(cell.task, len(places)), cell.shots)):
        browsable_cell(run, cell, bare.setdefault(cell.task, {}), found)
    for cell_json in found.cells:
        cell_json["title"] = title_of(run.document, cell_json["task"])
    return found


def _chance(browsable: Browsable) -> dict[str, float]:
    """Accuracy of guessing by task, in %, of tasks with choices; by the samples on the page."""
    found = {}
    for cell in browsable.cells:
        counts = [len(sample["choices"]) for sample in cell["samples"]]
        if counts and min(counts) > 1:
            found[str(cell["task"])] = 100 * sum(1 / count for count in counts) / len(counts)
    return found


def _first_cells(run: RunFolder) -> dict[tuple[str, int], str]:
    """The name of a task's cell at a number of shots, with the first seed."""
    names: dict[tuple[str, int], str] = {}
    for cell in run.cells:
        names.setdefault((cell.task, cell.shots), cell.name)
    return names


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How the run was made, as names and values."""
    for section in ("model", "settings", "environment"):
        for key, value in document[section].items():
            if value is not None:
                name = f"{section}: {key.replace('_', ' ')}"
                yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
