"""Contamination on the page: cuts by task and dataset, and what some of them were."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.corpus.parquet import read_parquet
from training.corpus.report.folder import StageFolder

_EXAMPLES_A_TASK = 3
_MOST_EXAMPLES = 24
_SHARDS = 20
_BESIDE = 300
_TASK = "cuts: "


@dataclass(frozen=True)
class CutExample:
    """A cut: the match with what was cut before and after it, shortened."""

    document: str
    task: str
    before: str
    matched: str
    after: str
    characters: int


@dataclass(frozen=True)
class ContaminationPart:
    """`cuts` by task and dataset; `cut` and `dropped` are documents."""

    cuts: Mapping[str, Mapping[str, int]]
    cut: int
    dropped: int
    examples: tuple[CutExample, ...]


def contamination_part(
    stage: StageFolder, datasets: Sequence[str], configuration: Mapping[str, Any]
) -> ContaminationPart | None:
    """None where no task's texts were looked for."""
    if not (configuration.get("decontaminate") or {}).get("texts"):
        return None
    cuts: dict[str, dict[str, int]] = {}
    cut = dropped = 0
    for dataset in datasets:
        found = stage.counts(dataset)
        counts = found.get("counts", {})
        cut += int(counts.get("documents cut", 0))
        dropped += int(found.get("dropped", 0))
        for name, count in counts.items():
            if name.startswith(_TASK):
                cuts.setdefault(name.removeprefix(_TASK), {})[dataset] = int(count)
    return ContaminationPart(dict(sorted(cuts.items())), cut, dropped, tuple(_examples(stage, datasets)))


def _examples(stage: StageFolder, datasets: Sequence[str]) -> list[CutExample]:
    """Of every task some, those with the smallest hashes."""
    rows = [
        row
        for dataset in datasets
        for path in stage.side("cuts", dataset)[:_SHARDS]
        for row in read_parquet(path, ["id", "task", "matched", "removed", "start"]).to_pylist()
    ]
    taken: dict[str, list[CutExample]] = {}
    for row in sorted(rows, key=_rank):
        of_task = taken.setdefault(row["task"], [])
        if len(of_task) < _EXAMPLES_A_TASK:
            of_task.append(_example(row))
    return [example for _, examples in sorted(taken.items()) for example in examples][:_MOST_EXAMPLES]


def _example(row: Mapping[str, Any]) -> CutExample:
    before, matched, after = row["removed"].partition(row["matched"])
    return CutExample(
        document=row["id"],
        task=row["task"],
        before=f"… {before[-_BESIDE:]}" if len(before) > _BESIDE else before,
        matched=f"{matched[: 2 * _BESIDE]} …" if len(matched) > 2 * _BESIDE else matched,
        after=f"{after[:_BESIDE]} …" if len(after) > _BESIDE else after,
        characters=len(row["removed"]),
    )


def _rank(row: Mapping[str, Any]) -> str:
    return hashlib.blake2b(f"{row['id']} {row['start']}".encode(), digest_size=8).hexdigest()
