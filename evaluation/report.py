"""The table: accuracies by task and shots, beside the published ones."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from evaluation.grid import CellResult
from foundation.config import CONFIG_ROOT, StrictModel, load_config

Results = Mapping[tuple[str, int], CellResult]

FOOTNOTE = (
    "Accuracy (acc) ± standard error, %. Published figures: MT-NLG 530B, all documents; in brackets the number of "
    "examples in its few-shot prompts, (?) where that is not verified. Compare equal numbers of shots only."
)


class PublishedAccuracy(StrictModel):
    """A model's accuracies on one task, in %; `few_shot_examples` None where not verified."""

    zero_shot: float
    one_shot: float
    few_shot: float
    few_shot_examples: int | None


class Published(StrictModel):
    """configs/evaluation/published.yaml."""

    model: str
    tasks: dict[str, PublishedAccuracy]


def published_accuracies() -> Published:
    """The published figures that stand beside ours."""
    return load_config(Published, CONFIG_ROOT / "evaluation" / "published.yaml")


def table_cells(tasks: Sequence[str], shots: Sequence[int], results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and rows, as text; a cell that is not scored yet is an ellipsis."""
    published = published_accuracies()
    header = ["task", *[f"{count}-shot" for count in shots]]
    header += [f"{published.model} {column}" for column in ("0-shot", "1-shot", "few-shot")]
    rows = []
    for task in tasks:
        ours = [_accuracy(results.get((task, count))) for count in shots]
        rows.append([task, *ours, *_published_columns(published.tasks.get(task))])
    return header, rows


def rich_table(tasks: Sequence[str], shots: Sequence[int], results: Results) -> Table:
    """The table for a terminal."""
    header, rows = table_cells(tasks, shots, results)
    # No frame: three numbers of shots then fit in 80 columns.
    table = Table(box=box.SIMPLE_HEAD, caption=FOOTNOTE, caption_justify="left")
    for number, column in enumerate(header):
        published = number > len(shots)
        table.add_column(
            column.replace(" ", "\n") if published else column,
            justify="left" if number == 0 else "right",
            style=None if published else "bold",
            no_wrap=True,
        )
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(tasks: Sequence[str], shots: Sequence[int], results: Results, notes: Sequence[str]) -> str:
    """The table as a Markdown document, with a list of notes."""
    header, rows = table_cells(tasks, shots, results)
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = ["| " + " | ".join(line) + " |" for line in [header, rule, *rows]]
    return "\n".join([*lines, "", FOOTNOTE, "", *[f"- {note}" for note in notes], ""])


def _accuracy(result: CellResult | None) -> str:
    if result is None:
        return "…"
    stderr = result.stderr("acc")
    return f"{100 * result.metric('acc'):.1f}" + (f"±{100 * stderr:.1f}" if stderr is not None else "")


def _published_columns(accuracy: PublishedAccuracy | None) -> list[str]:
    if accuracy is None:
        return ["", "", ""]
    examples = accuracy.few_shot_examples
    few = f"{accuracy.few_shot:.1f} ({'?' if examples is None else examples})"
    return [f"{accuracy.zero_shot:.1f}", f"{accuracy.one_shot:.1f}", few]
