"""The table of a results document: our accuracies, below each row the published ones in their columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evaluation.report.published import SETTINGS, Published, PublishedTask, Setting, Supervised, published_in

RECALLED = "†"
PENDING = "…"
# Of a cell's prompts, so many may lose their beginning and it still counts as being of so many shots.
MOST_CUT = 0.01


@dataclass(frozen=True)
class Ours:
    """A cell's accuracy in %, the mean over its seeds.

    The interval's ends are means over the seeds too: an upper bound for the width of the mean's own, since all seeds
    score the same documents, so that their errors add up at worst. `examples` is how many the prompts had, fewer than
    `shots` where the context is short; `lost` whether more than 1 % of the prompts lost their beginning all the same.
    """

    task: str
    shots: int
    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    documents: int
    examples: int
    lost: bool

    @property
    def whole(self) -> bool:
        """Whether the prompts had the number of examples that was asked for."""
        return self.examples == self.shots and not (self.shots and self.lost)


@dataclass(frozen=True)
class Theirs:
    """A published accuracy in %; `shots` is None where not known, `same_shots` whether ours has as many examples."""

    value: float
    shots: int | None
    same_shots: bool
    recalled: bool
    shots_recalled: bool


@dataclass(frozen=True)
class PublishedLine:
    """A published model's figures in the row's columns."""

    model: str
    cells: tuple[Theirs | None, ...]
    note: str | None


@dataclass(frozen=True)
class ReportRow:
    """A row; `cells` names what each column holds, `ours` is None where it is not scored yet."""

    title: str
    cells: tuple[tuple[str, int], ...]
    ours: tuple[Ours | None, ...]
    published: tuple[PublishedLine, ...]
    supervised: Supervised | None


def report_rows(document: Mapping[str, Any]) -> list[ReportRow]:
    """The table's rows. Needs the keys table, cells and published of results.json."""
    published = published_in(document)
    scored = _scored(document["cells"])
    return [_row(row, scored, published) for row in document["table"]["rows"]]


def ours_parts(ours: Ours) -> tuple[str, str, str, str]:
    """Accuracy, interval, examples and the seeds' range as text; the last two are empty where not needed."""
    interval = f"[{ours.low:.1f}, {ours.high:.1f}]"
    shots = ""
    if not ours.whole or ours.shots > 1:
        fewer = f" of {ours.shots}" if ours.examples < ours.shots else ""
        shots = f"({'<' if ours.lost else ''}{ours.examples}{fewer})"
    seeds = f"seeds {min(ours.by_seed):.1f}–{max(ours.by_seed):.1f}" if len(ours.by_seed) > 1 else ""  # noqa: RUF001
    return f"{ours.value:.1f}", interval, shots, seeds


def ours_text(ours: Ours) -> str:
    """A cell of ours in one line."""
    return " ".join(part for part in ours_parts(ours) if part)


def theirs_text(theirs: Theirs) -> str:
    """A published figure, with its number of examples where that is more than one or not known."""
    text = f"{theirs.value:.1f}{RECALLED if theirs.recalled else ''}"
    if theirs.shots is None:
        return f"{text} (?)"
    if theirs.shots < 2:
        return text
    return f"{text} ({theirs.shots}{RECALLED if theirs.shots_recalled else ''})"


def supervised_text(supervised: Supervised) -> str:
    """The best supervised result."""
    return f"{supervised.accuracy:.1f}{RECALLED if supervised.recalled else ''}"


def title_of(document: Mapping[str, Any], task: str) -> str:
    """A task's title, or its name where it has none."""
    return str(document["tasks"].get(task, {}).get("title", task))


def _scored(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Ours]:
    by_cell: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for cell in cells:
        by_cell.setdefault((cell["task"], cell["shots"]), []).append(cell)
    return {cell: _ours(*cell, seeds) for cell, seeds in by_cell.items()}


def _ours(task: str, shots: int, seeds: Sequence[Mapping[str, Any]]) -> Ours:
    accuracies = [cell["accuracy"] for cell in seeds]
    return Ours(
        task=task,
        shots=shots,
        value=100 * fmean(accuracy["value"] for accuracy in accuracies),
        low=100 * fmean(accuracy["low"] for accuracy in accuracies),
        high=100 * fmean(accuracy["high"] for accuracy in accuracies),
        by_seed=tuple(100 * float(accuracy["value"]) for accuracy in accuracies),
        documents=int(accuracies[0]["documents"]),
        examples=min(int(cell["examples"]) for cell in seeds),
        lost=any(cell["usage"]["contexts_cut"] > MOST_CUT * cell["usage"]["requests"] for cell in seeds),
    )


def _row(row: Mapping[str, Any], scored: Mapping[tuple[str, int], Ours], published: Published) -> ReportRow:
    cells = tuple((str(task), int(shots)) for task, shots in row["cells"])
    ours = tuple(scored.get(cell) for cell in cells)
    key = row["published"]
    lines = []
    for model in published.models:
        if key is not None and (figures := model.tasks.get(key)):
            theirs = _theirs(figures, cells, ours)
            if any(theirs):
                lines.append(PublishedLine(model.name, theirs, figures.note))
    supervised = published.supervised.get(key) if key is not None else None
    return ReportRow(str(row["title"]), cells, ours, tuple(lines), supervised)


def _theirs(
    figures: PublishedTask, cells: Sequence[tuple[str, int]], ours: Sequence[Ours | None]
) -> tuple[Theirs | None, ...]:
    counts = [shots for _, shots in cells]
    few = _few_shot_count(counts, figures.examples)
    found: list[Theirs | None] = []
    for count, mine in zip(counts, ours, strict=True):
        setting: Setting = "few_shot" if count > 1 else SETTINGS[count]
        accuracy = figures.accuracy(setting)
        if accuracy is None or (count > 1 and count != few):
            found.append(None)
            continue
        shots = figures.shots(setting)
        found.append(
            Theirs(
                value=accuracy,
                shots=shots,
                same_shots=shots == count and not (mine and not mine.whole),
                recalled=setting in figures.recalled,
                shots_recalled=setting == "few_shot" and "examples" in figures.recalled,
            )
        )
    return tuple(found)


def _few_shot_count(counts: Sequence[int], examples: int | None) -> int:
    """The column, by its number of shots, of the published few-shot figure: that with as many, else with the most."""
    return examples if examples in counts and examples is not None else max(counts)
