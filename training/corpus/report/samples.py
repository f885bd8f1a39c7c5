"""Documents to look at: of every stage and dataset some that it kept, and of every rule some that it dropped."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.corpus.parquet import read_parquet
from training.corpus.report.folder import StageFolder

KEPT = 5
DROPPED_A_RULE = 3
MOST_CHARACTERS = 1200
# A page of a corpus of a thousand shards must not read them all.
_SHARDS = 3

_Place = tuple[Path, int]


@dataclass(frozen=True)
class Sample:
    """A document's beginning. `rule` is empty for one that was kept; `more` characters of the text follow."""

    id: str
    rule: str
    detail: str
    text: str
    more: int

    def as_json(self) -> list[Any]:
        """As the page's script reads it."""
        return [self.id, self.rule, self.detail, self.text, self.more]


def samples(stage: StageFolder, dataset: str) -> list[Sample]:
    """Kept ones first, then dropped ones rule by rule; the same in every report of this corpus.

    They are those with the smallest hashes of their ids, so that a document shown at one stage is likely to be shown
    at the next. Looks into a few shards only.
    """
    kept = _ranked(stage.shards(dataset), dropped=False)
    dropped = _ranked(stage.shards(dataset, dropped=True), dropped=True)
    chosen = [place for _, places in kept for place in places[:KEPT]]
    chosen += [place for _, places in dropped for place in places[:DROPPED_A_RULE]]
    rows = _rows(chosen)
    return [_sample(rows[place]) for place in chosen]


def _ranked(shards: Sequence[Path], dropped: bool) -> list[tuple[str, list[_Place]]]:
    """By rule the documents' places, those with the smallest hashes first."""
    found: dict[str, list[tuple[str, Path, int]]] = {}
    for shard in _spread(shards):
        table = read_parquet(shard, ["id", "rule"] if dropped else ["id"]).to_pydict()
        rules = table.get("rule", [""] * len(table["id"]))
        for number, (name, rule) in enumerate(zip(table["id"], rules, strict=True)):
            found.setdefault(rule, []).append((_rank(name), shard, number))
    return [(rule, [(shard, number) for _, shard, number in sorted(rows)]) for rule, rows in sorted(found.items())]


def _spread(shards: Sequence[Path]) -> list[Path]:
    step = max(1, len(shards) // _SHARDS)
    return list(shards[::step][:_SHARDS])


def _rows(places: Sequence[_Place]) -> dict[_Place, dict[str, Any]]:
    """The rows at `places`; each shard is read once."""
    found = {}
    for shard in dict.fromkeys(shard for shard, _ in places):
        numbers = [number for one, number in places if one == shard]
        rows = read_parquet(shard).take(numbers).to_pylist()
        found.update({(shard, number): row for number, row in zip(numbers, rows, strict=True)})
    return found


def _sample(row: dict[str, Any]) -> Sample:
    text = row.get("text")
    if text is None:
        # A raw page is shown as it came.
        text = (row.get("html") or b"").decode("utf-8", errors="replace")
    return Sample(
        row["id"],
        row.get("rule") or "",
        row.get("detail") or "",
        text[:MOST_CHARACTERS],
        max(0, len(text) - MOST_CHARACTERS),
    )


def _rank(id: str) -> str:
    return hashlib.blake2b(id.encode(), digest_size=8).hexdigest()
