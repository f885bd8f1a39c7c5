"""The candidates' sets of n-grams, compared exactly."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foundation.files import write_bytes
from training.corpus.arrays import write_array
from training.corpus.dedup.candidates import Candidates
from training.corpus.dedup.config import DeduplicateConfig
from training.corpus.dedup.signatures import Hashes, Integers, Signatures
from training.corpus.dedup.spread import spread
from training.corpus.dedup.words import letters, text_buffers
from training.corpus.parquet import read_parquet
from training.corpus.stage import Shard, Work, shard_item, shard_of

_ROWS = "rows.npy"


@dataclass(frozen=True)
class NgramSets:
    """Ascending hashes of n-grams: set i is values[bounds[i, 0]:bounds[i, 1]]."""

    values: Hashes
    bounds: Integers

    def similarities(self, left: Integers, right: Integers) -> NDArray[np.float64]:
        """The Jaccard similarities of the sets left[i] and right[i]."""
        from training.corpus.dedup.kernels import similarities

        return similarities(self.values, self.bounds, left, right)


@dataclass(frozen=True)
class CollectSets:
    """Writes folder/DATASET/NAME.npz, the sets of some of a shard's documents."""

    ngram: int
    folder: Path

    def __call__(self, item: str) -> str:
        """`item` names the shard, and the part of rows.npy that says which of its rows."""
        shard, values = shard_of(item), json.loads(item)
        target = _sets_path(self.folder, shard)
        if target.is_file():
            return ""
        from training.corpus.dedup.kernels import ngram_sets

        rows = np.load(self.folder / _ROWS, mmap_mode="r")[values["begin"] : values["end"]]
        texts = text_buffers(read_parquet(shard.path, ["text"])["text"])
        found, sizes = ngram_sets(*texts, letters(), self.ngram, np.array(rows))
        sink = io.BytesIO()
        np.savez(sink, values=found, sizes=sizes)
        write_bytes(target, sink.getvalue())
        return ""


def collect_sets(work: Work, folder: Path, signatures: Signatures, documents: Integers, ngram: int) -> NgramSets:
    """The sets of `documents`, in their order. They lie in a file mapped into memory: 8 bytes an n-gram."""
    order = np.argsort(documents)
    parts = signatures.by_shard(documents[order])
    write_array(folder / _ROWS, np.concatenate([rows for _, rows in parts]) if parts else np.zeros(0, np.int64))
    items, begin = [], 0
    for number, rows in parts:
        items.append(shard_item(signatures.shards[number], begin=begin, end=begin + len(rows)))
        begin += len(rows)
    spread(work, "n-grams", CollectSets(ngram, folder), items)
    loaded = [np.load(_sets_path(folder, signatures.shards[number])) for number, _ in parts]
    sizes = np.concatenate([part["sizes"] for part in loaded]) if parts else np.zeros(0, np.int64)
    ends = np.cumsum(sizes)
    values = _mapped(folder / "values.u64", int(sizes.sum()))
    at = 0
    for part in loaded:
        found = part["values"]
        values[at : at + len(found)] = found
        at += len(found)
    bounds = np.empty((len(documents), 2), np.int64)
    bounds[order, 0], bounds[order, 1] = ends - sizes, ends
    return NgramSets(values, bounds)


def compare(candidates: Candidates, sets: NgramSets, config: DeduplicateConfig) -> tuple[Integers, dict[str, int]]:
    """Edges [2, n] between documents that are alike, enough to join what is, and counts of the work."""
    from training.corpus.dedup.kernels import join

    edges, (comparisons, unfinished) = join(
        sets.values, sets.bounds, candidates.members, candidates.starts, config.threshold, config.comparisons
    )
    counts = {"comparisons": int(comparisons), "edges": edges.shape[1], "bands left unfinished": int(unfinished)}
    return candidates.sets[edges], counts


def _sets_path(folder: Path, shard: Shard) -> Path:
    return folder / shard.dataset / f"{shard.name}.npz"


def _mapped(path: Path, size: int) -> Hashes:
    # An empty file cannot be mapped.
    return np.memmap(path, np.uint64, "w+", shape=(max(1, size),))
