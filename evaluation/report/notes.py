"""What has to be said beside the table: how to read it, and everything that makes a comparison less than equal."""

from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.report.table import RECALLED, ReportRow, report_rows, title_of


def legend(rows: list[ReportRow]) -> str:
    """How to read the figures; speaks only of the marks that the rows hold."""
    theirs = [cell for row in rows for line in row.published for cell in line.cells if cell]
    ours = [cell for row in rows for cell in row.ours if cell]
    text = "Accuracy in % [95 % interval], in brackets the number of examples in the prompt."
    if any(cell.examples < cell.shots for cell in ours):
        text += " (8 of 32): so many of them fit into the context."
    if any(cell.lost and cell.shots for cell in ours):
        text += " (<32): over 1 % of the prompts were too long and lost their first examples."
    if any(len(cell.by_seed) > 1 for cell in ours):
        text += " Mean over the seeds, and their range."
    if any(not cell.same_shots for cell in theirs):
        text += " In italics: not as many examples as ours, not to be compared."
    if any(cell.shots is None for cell in theirs):
        text += " (?): number of examples not known."
    recalled = any(cell.recalled or cell.shots_recalled for cell in theirs)
    if recalled or any(row.supervised and row.supervised.recalled for row in rows):
        text += f" {RECALLED} from memory, not verified."
    return text


def notes(document: Mapping[str, Any]) -> list[str]:
    """One sentence a note, as plain text: limits, seeds, samples, contexts cut, published figures unlike ours."""
    return [*_settings_notes(document), *_task_notes(document), *_usage_notes(document), *_published_notes(document)]


def _settings_notes(document: Mapping[str, Any]) -> Iterator[str]:
    settings = document["settings"]
    if settings["limit"] is not None:
        yield f"The first {settings['limit']} documents of each task only, not a random sample of them."
    if len(settings["seeds"]) > 1:
        yield (
            f"{len(settings['seeds'])} seeds ({', '.join(str(seed) for seed in settings['seeds'])}): the interval is "
            "the mean of the seeds' intervals, which is at least as wide as that of the mean."
        )
    if settings.get("examples") == "per-document":
        yield "The examples are drawn anew for each document."


def _task_notes(document: Mapping[str, Any]) -> Iterator[str]:
    for task, about in document["tasks"].items():
        title = title_of(document, task)
        for note in about.get("notes", ()):
            yield f"{title}: {note.rstrip('.')}."
        if about.get("metric", "acc") != "acc":
            yield f"{title}: the metric is {about['metric']}."
        if about.get("cluster"):
            yield f"{title}: documents of one {about['cluster']} are one cluster in the interval, not independent."


def _usage_notes(document: Mapping[str, Any]) -> Iterator[str]:
    for cell in document["cells"]:
        usage = cell["usage"]
        where = f"{title_of(document, cell['task'])} at {cell['shots']} shots"
        if len(document["settings"]["seeds"]) > 1:
            where += f", seed {cell['seed']}"
        if cell["examples"] < cell["shots"]:
            yield f"{where}: the model's context has room for {cell['examples']} examples."
        if cut := usage["contexts_cut"]:
            yield (
                f"{where}: {cut} of {usage['requests']} prompts were longer than the model's context and lost their "
                "beginning."
            )


def _published_notes(document: Mapping[str, Any]) -> Iterator[str]:
    for row in report_rows(document):
        for line in row.published:
            if line.note:
                yield f"{row.title}: {line.model}: {line.note.rstrip('.')}."
