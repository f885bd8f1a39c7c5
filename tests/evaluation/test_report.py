"""The table as Markdown, CSV, LaTeX and for a terminal, and the published figures in it."""

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evaluation.report.published import SETTINGS
from evaluation.report.reports import published_accuracies, rich_table, write_reports
from foundation.errors import UserError
from tests.evaluation.report_run import HOSTILE, change_run, interval_of, read_run, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("run"))
    write_reports(run)
    return run


def cell_of(document: dict[str, Any], task: str, shots: int) -> dict[str, Any]:
    return next(cell for cell in document["cells"] if (cell["task"], cell["shots"]) == (task, shots))


def markdown_rows(text: str) -> dict[str, list[str]]:
    """The columns by the row's first cell; a published line's name is 'row/model'."""
    rows, title = {}, ""
    for line in text.splitlines():
        if line.startswith("| ") and "---" not in line:
            first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
            title = first if first.startswith("**") else title
            rows[first if first.startswith("**") else f"{title.strip('*')}/{first}"] = cells
    return rows


def csv_rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))


def terminal_text(document: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(rich_table(document))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_the_four_files_are_written_and_returned(folder: Path) -> None:
    names = ["table.md", "table.csv", "table.tex", "report.html"]
    assert write_reports(folder) == [folder / name for name in names]
    assert all((folder / name).stat().st_size for name in names)


def test_reports_are_the_same_when_written_again(folder: Path) -> None:
    before = [path.read_bytes() for path in write_reports(folder)]
    assert before == [path.read_bytes() for path in write_reports(folder)]


def test_published_file_has_the_nine_tasks_of_mtnlg_as_in_its_announcement() -> None:
    # Figure 3 of the announcement, zero-, one- and few-shot.
    printed = {
        "lambada": (0.766, 0.731, 0.872),
        "boolq": (0.782, 0.825, 0.848),
        "race_h": (0.479, 0.484, 0.479),
        "piqa": (0.820, 0.810, 0.832),
        "hellaswag": (0.802, 0.802, 0.824),
        "winogrande": (0.730, 0.737, 0.789),
        "anli_r2": (0.366, 0.397, 0.396),
        "hans": (0.607, 0.649, 0.702),
        "wic": (0.486, 0.513, 0.585),
    }
    mtnlg = published_accuracies().models[0]
    assert mtnlg.name == "MT-NLG 530B"
    found = {
        task: tuple(pytest.approx(figures.accuracy(setting)) for setting in SETTINGS)
        for task, figures in mtnlg.tasks.items()
    }
    assert {task: tuple(100 * value for value in values) for task, values in printed.items()} == found


def test_markdown_has_our_accuracy_with_its_interval_and_the_published_below(folder: Path) -> None:
    rows = markdown_rows((folder / "table.md").read_text())
    value, low, high = interval_of(cell_of(read_run(folder), "wic", 32))
    assert rows["**WiC**"][2] == f"{value:.1f} [{low:.1f}, {high:.1f}] (32)"
    assert rows["WiC/MT-NLG 530B"][:3] == ["48.6", "51.3", "58.5 (32)"]
    assert rows["WiC/GPT-3 175B"][:3] == ["0.0", "48.6", "55.3† (32)"]
    assert rows["**WiC**"][3] == "77.9†"
    assert "WiC/Gopher 280B" not in rows


def test_a_row_may_be_of_several_tasks(folder: Path) -> None:
    rows = markdown_rows((folder / "table.md").read_text())
    document = read_run(folder)
    shown = [float(cell.split()[0]) for cell in rows["**LAMBADA**"][:3]]
    cells = [cell_of(document, *cell) for cell in (("lambada", 0), ("lambada_cloze", 1), ("lambada_cloze", 15))]
    assert shown == [round(next(interval_of(cell)), 1) for cell in cells]


def test_fewer_examples_than_asked_and_other_numbers_of_examples_are_marked(folder: Path) -> None:
    text = (folder / "table.md").read_text()
    rows = markdown_rows(text)
    assert rows["**BoolQ**"][2].endswith("(8 of 32)")
    assert rows["**RACE-h**"][2].endswith("(<10)")
    assert rows["RACE-h/GPT-3 175B"][2] == "*46.8 (10)*"
    # The published prompts held all 32: not to be compared with 8.
    assert rows["BoolQ/MT-NLG 530B"][2] == "*84.8 (32)*"
    assert rows["PIQA/MT-NLG 530B"][2] == "*83.2 (?)*"
    assert rows["HANS/MT-NLG 530B"][2] == "70.2 (4†)"
    assert "BoolQ at 32 shots: the model's context has room for 8 examples." in text
    assert "RACE-h at 10 shots: 2 of 120 prompts were longer than the model's context" in text
    assert "HANS: another draw than the official set." in text
    assert "lettered answers" in text


def test_the_published_few_shot_figure_stands_in_the_column_of_its_number(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"])
    rows = [{"title": "WiC", "cells": [["wic", 32], ["wic", 64]], "published": "wic"}]
    change_run(tmp_path, table={"columns": ["32-shot", "64-shot"], "rows": rows})
    write_reports(tmp_path)
    shown = markdown_rows((tmp_path / "table.md").read_text())
    assert shown["WiC/MT-NLG 530B"][:2] == ["58.5 (32)", ""]
    assert shown["**WiC**"][1] == "…"


def test_a_row_without_published_figures_has_none(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"])
    change_run(
        tmp_path, table={"columns": ["0-shot"], "rows": [{"title": "WiC", "cells": [["wic", 0]], "published": None}]}
    )
    write_reports(tmp_path)
    assert list(markdown_rows((tmp_path / "table.md").read_text())) == ["/", "**WiC**"]
    assert {row["source"] for row in csv_rows(tmp_path)} == {"run"}


def test_limit_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"])
    change_run(tmp_path, settings={**read_run(tmp_path)["settings"], "limit": 30})
    write_reports(tmp_path)
    for name in ("table.md", "table.tex", "report.html"):
        assert "first 30 documents" in (tmp_path / name).read_text()


def test_model_line_names_the_files_where_they_are_known(folder: Path, tmp_path: Path) -> None:
    assert (
        "- Model: runs/demo-hf, files 89f7649b6a62; hf, float32, all documents, seed 1234."
        in (folder / "table.md").read_text()
    )
    write_run(tmp_path, rows=["wic"])
    document = read_run(tmp_path)
    served = {**document["model"], "path": "http://127.0.0.1:8000"}
    change_run(tmp_path, model=served, settings={**document["settings"], "backend": "http"})
    write_reports(tmp_path)
    assert "- Model: http://127.0.0.1:8000; http, float32" in (tmp_path / "table.md").read_text()


def test_csv_is_unrounded_and_has_a_line_a_cell_and_a_published_figure(folder: Path) -> None:
    document, rows = read_run(folder), csv_rows(folder)
    ours = [row for row in rows if row["source"] == "run"]
    assert len(ours) == len(document["cells"])
    for row in ours:
        cell = cell_of(document, row["task"], int(row["shots"]))
        for key in ("value", "stderr", "low", "high", "documents", "clusters"):
            assert float(row["accuracy" if key == "value" else key]) == cell["accuracy"][key]
        assert int(row["shots_used"]) == cell["examples"]
    published = [row for row in rows if row["source"] == "published"]
    figures = [
        figures.accuracy(setting)
        for model in published_accuracies().models
        for figures in model.tasks.values()
        for setting in SETTINGS
        if figures.accuracy(setting) is not None
    ]
    assert len(published) == len(figures) + len(published_accuracies().supervised)
    few = next(
        row for row in published if (row["model"], row["task"], row["column"]) == ("MT-NLG 530B", "lambada", "few-shot")
    )
    assert (few["accuracy"], few["shots"], few["verified"], few["shots_verified"]) == ("0.872", "15", "True", "True")
    assert (
        next(r for r in published if r["model"] == "MT-NLG 530B" and r["task"] == "hans" and r["shots"] == "4")[
            "shots_verified"
        ]
        == "False"
    )


def test_seeds_are_averaged_and_their_range_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"], seeds=(1, 2, 3))
    write_reports(tmp_path)
    cells = [cell for cell in read_run(tmp_path)["cells"] if cell["shots"] == 1]
    value, low, high = (sum(figures) / 3 for figures in zip(*(interval_of(cell) for cell in cells), strict=True))
    seeds = [next(interval_of(cell)) for cell in cells]
    shown = markdown_rows((tmp_path / "table.md").read_text())["**WiC**"][1]
    assert shown == f"{value:.1f} [{low:.1f}, {high:.1f}] seeds {min(seeds):.1f}–{max(seeds):.1f}"  # noqa: RUF001
    assert len([row for row in csv_rows(tmp_path) if row["shots"] == "1" and row["source"] == "run"]) == 3


def test_terminal_table_fits_in_80_columns_and_shows_what_is_missing(folder: Path) -> None:
    document = read_run(folder)
    partial = {key: document[key] for key in ("tasks", "table", "published")} | {"cells": document["cells"][:4]}
    for shown in (document, partial):
        text = terminal_text(shown)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
        # Nothing is cropped: every published figure of a row is there.
        assert re.search(r"MT-NLG 530B +48\.6 +51\.3 +58\.5 \(32\)", text)
    assert "…" not in terminal_text(document)
    value, low, high = interval_of(document["cells"][0])
    assert f"{value:.1f} [{low:.1f}, {high:.1f}]" in terminal_text(partial)
    assert len(re.findall("…", terminal_text(partial))) == len(document["cells"]) - 4


def test_hostile_titles_are_text_in_every_format(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"])
    table = read_run(tmp_path)["table"]
    title = f"[bold]a|b_c & 50 % #1 ~{{x}}^2 \\end{{tabular}} $ 漢 {HOSTILE}"
    change_run(tmp_path, table={**table, "rows": [{**table["rows"][0], "title": title}]})
    write_reports(tmp_path)
    markdown = (tmp_path / "table.md").read_text()
    assert r"\[bold\]a\|b\_c &amp; 50 %" in markdown
    assert "<script" not in markdown
    latex = (tmp_path / "table.tex").read_text()
    assert (
        r"a\textbar{}b\_c \& 50 \% \#1 \textasciitilde{}\{x\}\textasciicircum{}2 \textbackslash{}end\{tabular\} \$ ?"
        in latex
    )
    assert latex.count(r"\end{tabular}") == 1
    assert "[bold]a|b_c" in terminal_text(read_run(tmp_path), width=300)


def test_latex_has_our_figures_and_the_published_ones(folder: Path) -> None:
    latex = (folder / "table.tex").read_text()
    value, low, high = interval_of(cell_of(read_run(folder), "wic", 32))
    assert f"{value:.1f} [{low:.1f}, {high:.1f}] (32)" in latex
    assert r"\quad MT-NLG 530B & 48.6 & 51.3 & 58.5 (32) &  \\" in latex
    assert r"\textit{84.8 (32)}" in latex
    assert r"55.3\textdagger{} (32)" in latex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex to compile the LaTeX table with")
def test_latex_table_compiles(folder: Path, tmp_path: Path) -> None:
    packages = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}"
    table = (folder / "table.tex").read_text()
    (tmp_path / "page.tex").write_text(rf"{packages}\begin{{document}}\noindent {table}\end{{document}}")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    compiled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert compiled.returncode == 0, compiled.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size


def test_a_folder_without_results_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"results\.json"):
        write_reports(tmp_path)


def test_published_figures_of_another_form_are_the_users_error(tmp_path: Path) -> None:
    write_run(tmp_path, rows=["wic"])
    change_run(tmp_path, published={"model": "MT-NLG 530B", "tasks": {}})
    with pytest.raises(UserError, match="published"):
        write_reports(tmp_path)
