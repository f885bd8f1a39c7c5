"""Duplicates on the page: clusters by size, what was removed from where, and pairs side by side."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from training.corpus.parquet import read_parquet
from training.corpus.report.folder import StageFolder

_SHOWN_CHARACTERS = 1200
# Clusters by size: each bound doubles from here on.
_SINGLE_SIZES = 4
_WORDS = re.compile(r"\S+|\s+")


@dataclass(frozen=True)
class Sizes:
    """Clusters with so many documents ("2", "5 to 8"), and their share of the commonest, in %."""

    sizes: str
    clusters: int
    documents: int
    width: float


@dataclass(frozen=True)
class Side:
    """One text of a pair: whose, and its pieces, each with whether the other text lacks it."""

    id: str
    pieces: tuple[tuple[str, bool], ...]
    cut: bool


@dataclass(frozen=True)
class Pair:
    """A document that was kept and one that went for it."""

    kept: Side
    dropped: Side
    similarity: float


@dataclass(frozen=True)
class DuplicatesPart:
    """`removed` by (the kept document's dataset, the removed one's) by rule; `facts` are names and counts."""

    sizes: tuple[Sizes, ...]
    removed: Mapping[tuple[str, str], Mapping[str, int]]
    rules: tuple[str, ...]
    pairs: tuple[Pair, ...]
    facts: tuple[tuple[str, int], ...]


def duplicates_part(stage: StageFolder) -> DuplicatesPart | None:
    """None where the stage's tables are gone."""
    scratch = stage.path / "scratch"
    if not (scratch / "sizes.parquet").is_file():
        return None
    removed: dict[tuple[str, str], dict[str, int]] = {}
    for row in _table(scratch / "dataset_pairs.parquet"):
        removed.setdefault((row["kept_dataset"], row["dataset"]), {})[row["rule"]] = row["documents"]
    return DuplicatesPart(
        sizes=tuple(_sizes(_table(scratch / "sizes.parquet"))),
        removed=removed,
        rules=tuple(sorted({rule for counts in removed.values() for rule in counts})),
        pairs=tuple(_pair(row) for row in _table(scratch / "examples.parquet")),
        facts=tuple((name, int(count)) for name, count in stage.read("scratch/found.json").items()),
    )


def _table(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_parquet(path).to_pylist() if path.is_file() else []
    return rows


def _sizes(rows: Sequence[Mapping[str, int]]) -> Iterator[Sizes]:
    """Small sizes one by one, larger ones taken together."""
    largest = max((row["size"] for row in rows), default=0)
    ranges, low = [], 2
    while low <= largest:
        high = low if low <= _SINGLE_SIZES else 2 * (low - 1)
        ranges.append((low, high))
        low = high + 1
    found = []
    for low, high in ranges:
        inside = [row for row in rows if low <= row["size"] <= high]
        clusters = sum(row["clusters"] for row in inside)
        found.append((low, high, clusters, sum(row["size"] * row["clusters"] for row in inside)))
    most = max((clusters for _, _, clusters, _ in found), default=1)
    for low, high, clusters, documents in found:
        yield Sizes(str(low) if low == high else f"{low} to {high}", clusters, documents, 100 * clusters / most)


def _pair(row: Mapping[str, Any]) -> Pair:
    kept, dropped = (_WORDS.findall(row[name][:_SHOWN_CHARACTERS]) for name in ("kept_text", "text"))
    marks = SequenceMatcher(None, kept, dropped, autojunk=False).get_opcodes()
    return Pair(
        _side(row["kept_id"], row["kept_text"], [(kept[a:b], tag != "equal") for tag, a, b, _, _ in marks]),
        _side(row["id"], row["text"], [(dropped[a:b], tag != "equal") for tag, _, _, a, b in marks]),
        row["similarity"],
    )


def _side(name: str, text: str, pieces: Sequence[tuple[Sequence[str], bool]]) -> Side:
    joined = tuple(("".join(words), alone) for words, alone in pieces if words)
    return Side(name, joined, len(text) > _SHOWN_CHARACTERS)
