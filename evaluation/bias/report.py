"""bias.json for people: a Markdown document and one self-contained page."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.html_page import page_style, page_templates

Document = Mapping[str, Any]

_EXTREMES = 12
_FOLDER = Path(__file__).resolve().parent


def headlines(document: Document) -> list[str]:
    """The results in a few lines, for a terminal too."""
    occupation = document["occupation"]
    share, difference = occupation["male_preferred"], occupation["difference"]
    published = "; ".join(
        f"{entry['model']}: {100 * entry['male_preferred']:.0f} % of {entry['occupations']}"
        for entry in document["published"]
    )
    lines = [
        f"{percent(share)} of {occupation['occupations']} occupations prefer a male identifier"
        + (f" (published, other lists: {published})." if published else "."),
        f"Mean log-likelihood difference, female minus male: {number(difference)} nats; after nouns without an "
        f"occupation: {occupation['reference']['difference']:+.2f}.",
    ]
    for axis, entry in document["adjectives"]["axes"].items():
        agreement = "none" if entry["agreement"] is None else f"{entry['agreement']:.2f}"
        lines.append(
            f"Adjectives by {axis}: spread {entry['spread']:.2f} nats, agreement of templates {agreement}, "
            f"{100 * entry['coverage']:.1f} % of next words are listed."
        )
    for axis, groups in document["sentiment"]["axes"].items():
        apart = [group for group, entry in groups.items() if not _contains_zero(entry["contrast"])]
        lines.append(
            f"Sentiment by {axis}: "
            + (f"apart from the others: {', '.join(apart)}." if apart else "no group's interval is apart from 0.")
        )
    return lines


def markdown_report(document: Document) -> str:
    """bias.md."""
    lines = ["# Bias probes", "", f"Model: {document['model'].get('path', '')}", ""]
    lines += [f"- {line}" for line in headlines(document)]
    lines += ["", "## What this is not", "", *[f"- {line}" for line in document["limits"]]]
    lines += ["", "## Occupations", "", "Log-likelihood difference, female minus male, in nats.", ""]
    female, male = extremes(document["occupation"]["by_occupation"])
    lines += _table(
        ["furthest to male", "nats", "furthest to female", "nats"],
        [
            [one["occupation"], f"{one['difference']:+.2f}", other["occupation"], f"{other['difference']:+.2f}"]
            for one, other in zip(male, female, strict=True)
        ],
    )
    for axis, entry in document["adjectives"]["axes"].items():
        lines += ["", f"## Adjectives by {axis}", "", "Skew in nats against the other groups.", ""]
        rows = [
            [group, ", ".join(f"{word['adjective']} {word['skew']:+.2f}" for word in words) or "none"]
            for group, words in entry["top"].items()
        ]
        lines += _table(["group", "most skewed to it, by every template"], rows)
    for axis, groups in document["sentiment"]["axes"].items():
        lines += ["", f"## Sentiment by {axis}", "", f"From -1 to 1, {document['sentiment']['lexicon']['source']}.", ""]
        rows = [[group, number(entry["sentiment"]), number(entry["contrast"])] for group, entry in groups.items()]
        lines += _table(["group", "sentiment (95 %)", "against the others (95 %)"], rows)
    return "\n".join([*lines, ""])


def html_report(document: Document) -> str:
    """bias.html: styles and figures inside, no script, nothing fetched; every text escaped. It looks as report.html."""
    templates = page_templates(_FOLDER, (headlines, percent, number, extremes, scale_end))
    style = page_style(_FOLDER.parent / "report" / "report.css", _FOLDER / "bias.css")
    return templates.get_template("bias.html").render(document=document, style=style).lstrip()


def extremes(entries: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Of occupations in order of their difference, those furthest to female and to male, furthest first."""
    count = min(_EXTREMES, len(entries))
    return list(reversed(entries[-count:])), list(entries[:count])


def scale_end(values: Iterable[float]) -> float:
    """Where a figure's scale ends that is symmetric about 0 and holds the values."""
    return max((abs(value) for value in values), default=0.0) or 1.0


def _contains_zero(estimate: Mapping[str, float]) -> bool:
    """Whether the interval does."""
    return estimate["low"] <= 0.0 <= estimate["high"]


def percent(estimate: Mapping[str, float]) -> str:
    """A share with its interval."""
    return f"{100 * estimate['value']:.1f} % ({100 * estimate['low']:.1f} to {100 * estimate['high']:.1f})"


def number(estimate: Mapping[str, float]) -> str:
    """A value with its interval."""
    return f"{estimate['value']:+.3f} ({estimate['low']:+.3f} to {estimate['high']:+.3f})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *escaped]]
