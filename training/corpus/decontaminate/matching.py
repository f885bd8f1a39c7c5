"""The tasks' n-grams found in a shard, kept in a file; and which of them are too common to be contamination."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foundation.files import write_bytes
from training.corpus.arrays import write_array
from training.corpus.decontaminate.config import DecontaminateConfig
from training.corpus.decontaminate.ngrams import Match, NgramIndex, read_texts
from training.corpus.parquet import read_parquet, write_parquet
from training.corpus.stage import Shard, shard_of

COMMON = "common.npy"
COMMON_TABLE = "common.parquet"
_TEXTS, _INDEX = "texts.jsonl", "index"
_BATCH_DOCUMENTS = 1024


def make_index(config: DecontaminateConfig, scratch: Path) -> None:
    """Make the index of the tasks' n-grams, and keep it and the texts beside the work, for workers anywhere.

    Raises UserError when the texts cannot be read.
    """
    if config.texts is None or (scratch / _INDEX).is_dir():
        return
    write_bytes(scratch / _TEXTS, config.texts.read_bytes())
    NgramIndex.of(read_texts(scratch / _TEXTS), config.min_words, config.max_words).save(scratch / _INDEX)


def open_index(scratch: Path) -> NgramIndex:
    """What `make_index` made; opened once in a process."""
    return _open_index(scratch, (scratch / _INDEX).stat().st_mtime_ns)


@cache
def _open_index(scratch: Path, _written: int) -> NgramIndex:
    return NgramIndex.load(scratch / _INDEX, scratch / _TEXTS)


@dataclass(frozen=True)
class FindMatches:
    """What worker processes do: find the n-grams in the shard that an item (JSON) names, and write them down.

    A shard's file holds a row a match: [the document's row, start, end, the n-gram's number], int64.
    """

    scratch: Path

    def __call__(self, item: str) -> str:
        """The number of documents of the shard, as JSON."""
        shard = shard_of(item)
        texts = read_parquet(shard.path, ["text"])["text"]
        index = open_index(self.scratch)
        rows = [
            (first + document, match.start, match.end, match.ngram)
            for first in range(0, len(texts), _BATCH_DOCUMENTS)
            for document, match in index.search(texts.slice(first, _BATCH_DOCUMENTS).to_pylist())
        ]
        write_array(matches_path(self.scratch, shard), np.array(rows, dtype=np.int64).reshape(-1, 4))
        return json.dumps(len(texts))


def matches_path(scratch: Path, shard: Shard) -> Path:
    """Where the matches of a shard are; the file is there when they are found."""
    return scratch / "matches" / shard.dataset / f"{shard.name}.npy"


def read_matches(scratch: Path, shard: Shard, common: npt.NDArray[np.int64]) -> dict[int, list[Match]]:
    """The matches of a shard's documents, by row, without those of `common` n-grams (numbers, sorted)."""
    rows = np.load(matches_path(scratch, shard))
    rows = rows[~np.isin(rows[:, 3], common)]
    found: dict[int, list[Match]] = {}
    for document, start, end, ngram in rows.tolist():
        found.setdefault(document, []).append(Match(start, end, ngram))
    return found


def write_common(scratch: Path, shards: Sequence[Shard], common_documents: int) -> None:
    """Count in how many documents each n-gram is, and write down the common ones: numbers, and a table to look at."""
    index = open_index(scratch)
    documents = np.zeros(len(index), dtype=np.int64)
    for shard in shards:
        rows = np.load(matches_path(scratch, shard))
        pairs = np.unique(rows[:, [0, 3]], axis=0)
        documents += np.bincount(pairs[:, 1], minlength=len(index))
    common = np.flatnonzero(documents >= common_documents)
    table: list[dict[str, Any]] = [
        {"ngram": index.ngram(number), "task": ",".join(index.tasks_of(number)), "documents": int(documents[number])}
        for number in common.tolist()
    ]
    table.sort(key=lambda row: (-row["documents"], row["ngram"]))
    schema = pa.schema([("ngram", pa.string()), ("task", pa.string()), ("documents", pa.int64())])
    write_parquet(pa.Table.from_pylist(table, schema=schema), scratch / COMMON_TABLE)
    write_array(scratch / COMMON, common)
