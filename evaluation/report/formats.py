"""The table as text: for a terminal, Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from evaluation.report.notes import legend, notes
from evaluation.report.published import SETTINGS, published_in
from evaluation.report.table import (
    PENDING,
    Ours,
    Theirs,
    ours_parts,
    ours_text,
    report_rows,
    supervised_text,
    theirs_text,
)

CSV_COLUMNS = (
    *("source", "model", "row", "task", "column", "shots", "shots_used", "seed"),
    *(
        "accuracy",
        "stderr",
        "low",
        "high",
        "documents",
        "clusters",
        "contexts_cut",
        "verified",
        "shots_verified",
        "note",
    ),
)
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "†": r"\textdagger{}",
    "…": r"\ldots{}",
    "–": "--",  # noqa: RUF001
    '"': "''",
    "\n": " ",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def rich_table(document: Mapping[str, Any]) -> Table:
    """The table for a terminal, 80 columns wide for zero, one and few shots; "…" is a cell that is not scored yet.

    `document` is results.json or what there is of it: the keys tasks, table, cells and published.
    """
    rows = report_rows(document)
    # No edges and one space of padding: three columns then fit in 80, with few-shot's number of examples in its line.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.caption, table.caption_justify, table.caption_style = legend(rows), "left", "dim"
    table.add_column("", no_wrap=True)
    for column in document["table"]["columns"]:
        # One space more: the figures below are five characters wide, so that their points are in one line.
        table.add_column(escape(f" {column}"))
    for row in rows:
        table.add_row(f"[bold]{escape(row.title)}[/]", *map(_rich_ours, row.ours))
        for line in row.published:
            theirs = [_rich_theirs(cell) for cell in line.cells]
            table.add_row(f"[dim]  {escape(line.model)}[/]", *theirs)
    return table


def markdown_table(document: Mapping[str, Any]) -> str:
    """The table as a Markdown document, with its notes."""
    rows = report_rows(document)
    supervised = any(row.supervised for row in rows)
    header = ["", *(_markdown(column) for column in document["table"]["columns"]), *["supervised"] * supervised]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        best = [supervised_text(row.supervised) if row.supervised else ""] * supervised
        lines.append([f"**{_markdown(row.title)}**", *map(_ours, row.ours), *best])
        for line in row.published:
            theirs = [_emphasised(cell, "*{}*") for cell in line.cells]
            lines.append([_markdown(line.model), *theirs, *[""] * supervised])
    table = ["| " + " | ".join(line) + " |" for line in lines]
    remarks = [f"- {_markdown(note)}" for note in (model_line(document), *notes(document))]
    return "\n".join([*table, "", _markdown(legend(rows)), "", *remarks, ""])


def csv_table(document: Mapping[str, Any]) -> str:
    """A line a scored cell and seed, then one a published figure; accuracies are fractions, unrounded."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_cells(document))
    writer.writerows(_csv_published(document))
    return text.getvalue()


def latex_table(document: Mapping[str, Any]) -> str:
    """The table as one booktabs tabular, its notes in the last row."""
    rows = report_rows(document)
    supervised = any(row.supervised for row in rows)
    columns = list(document["table"]["columns"])
    width = 1 + len(columns) + supervised
    lines = [
        r"% Needs \usepackage{booktabs} and pdfLaTeX's T1 or any newer engine.",
        rf"\begin{{tabular}}{{@{{}}{'l' * width}@{{}}}}",
        r"\toprule",
        _latex_line(["", *map(_latex, columns), *["supervised"] * supervised]),
    ]
    for row in rows:
        lines.append(r"\midrule")
        best = [_latex(supervised_text(row.supervised)) if row.supervised else ""] * supervised
        ours = [_latex(_ours(found)) for found in row.ours]
        lines.append(_latex_line([rf"\textbf{{{_latex(row.title)}}}", *ours, *best]))
        for line in row.published:
            theirs = [_latex_theirs(cell) for cell in line.cells]
            lines.append(_latex_line([rf"\quad {_latex(line.model)}", *theirs, *[""] * supervised]))
    remarks = " ".join(_latex(note) for note in (legend(rows), *notes(document)))
    lines += [
        r"\bottomrule",
        rf"\multicolumn{{{width}}}{{@{{}}p{{\linewidth}}@{{}}}}{{\footnotesize {remarks}}} \\",
        r"\end{tabular}",
    ]
    return "\n".join([*lines, ""])


def model_line(document: Mapping[str, Any]) -> str:
    """Which model, and how it was run."""
    model, settings = document["model"], document["settings"]
    documents = (
        "all documents" if settings["limit"] is None else f"the first {settings['limit']} documents of each task"
    )
    seeds = settings["seeds"]
    # A served model's hash is of its address, not of files.
    files = "" if settings["backend"] == "http" else f", files {model['files_sha256'][:12]}"
    return (
        f"Model: {model['path']}{files}; {settings['backend']}, {settings['dtype']}, "
        f"{documents}, {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(str(seed) for seed in seeds)}."
    )


def _rich_ours(ours: Ours | None) -> str:
    if ours is None:
        return f"[dim]    {PENDING}[/]"
    value, *others = ours_parts(ours)
    return " ".join([f"[bold]{value:>5}[/]", *(escape(part) for part in others if part)])


def _rich_theirs(theirs: Theirs | None) -> str:
    if theirs is None:
        return ""
    text = escape(theirs_text(theirs))
    padded = " " * (5 - len(f"{theirs.value:.1f}")) + text
    return f"[dim]{padded}[/]" if theirs.same_shots else f"[dim italic]{padded}[/]"


def _ours(ours: Ours | None) -> str:
    return PENDING if ours is None else ours_text(ours)


def _emphasised(theirs: Theirs | None, emphasis: str) -> str:
    if theirs is None:
        return ""
    return theirs_text(theirs) if theirs.same_shots else emphasis.format(theirs_text(theirs))


def _markdown(text: str) -> str:
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", plain)


def _latex(text: str) -> str:
    """LaTeX of any text; letters beyond Latin-1, which pdfLaTeX's fonts lack, become question marks."""
    return "".join(_LATEX.get(letter, letter if _printable_latin(letter) else "?") for letter in text)


def _printable_latin(letter: str) -> bool:
    return letter.isprintable() and ord(letter) < 0x100


def _latex_theirs(theirs: Theirs | None) -> str:
    if theirs is None:
        return ""
    text = _latex(theirs_text(theirs))
    return text if theirs.same_shots else rf"\textit{{{text}}}"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _csv_cells(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    scored: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell in document["cells"]:
        scored.setdefault((cell["task"], cell["shots"]), []).append(cell)
    for row in document["table"]["rows"]:
        for column, place in zip(document["table"]["columns"], row["cells"], strict=True):
            for cell in scored.get(tuple(place), ()):
                accuracy, usage = cell["accuracy"], cell["usage"]
                yield {
                    "source": "run",
                    "model": document["model"]["path"],
                    "row": row["title"],
                    "task": cell["task"],
                    "column": column,
                    "shots": cell["shots"],
                    "shots_used": cell["examples"],
                    "seed": cell["seed"],
                    "accuracy": accuracy["value"],
                    **{key: accuracy[key] for key in ("stderr", "low", "high", "documents", "clusters")},
                    "contexts_cut": usage["contexts_cut"],
                    "note": "; ".join(document["tasks"].get(cell["task"], {}).get("notes", ())),
                }


def _csv_published(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    published = published_in(document)
    for row in document["table"]["rows"]:
        key = row["published"]
        for model in published.models:
            figures = model.tasks.get(key)
            for setting in SETTINGS:
                accuracy = figures.accuracy(setting) if figures else None
                if figures is None or accuracy is None:
                    continue
                yield {
                    **{"source": "published", "model": model.name, "row": row["title"], "task": key},
                    **{"column": setting.replace("_", "-"), "shots": figures.shots(setting)},
                    **{"accuracy": _fraction(accuracy), "verified": setting not in figures.recalled},
                    "shots_verified": _shots_verified(setting, figures.examples, figures.recalled),
                    "note": figures.note,
                }
        if supervised := published.supervised.get(key):
            yield {
                **{"source": "published", "model": "supervised", "row": row["title"], "task": key},
                **{"accuracy": _fraction(supervised.accuracy), "verified": not supervised.recalled},
            }


def _shots_verified(setting: str, examples: int | None, recalled: Sequence[str]) -> bool:
    return setting != "few_shot" or (examples is not None and "examples" not in recalled)


def _fraction(percent: float) -> float:
    # 76.6 % is 0.766, not 0.7659999999999999.
    return round(percent / 100, 12)
