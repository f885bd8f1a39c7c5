"""What is computed of every document by itself: its bands' keys and a hash of its words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foundation.files import write_bytes
from training.corpus.dedup.config import DeduplicateConfig
from training.corpus.dedup.words import letters, text_buffers
from training.corpus.parquet import read_parquet
from training.corpus.stage import Shard, shard_of

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
_WORD_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Sign:
    """Writes folder/DATASET/NAME.arrow for one shard: id, words_low, words_high, ngrams, band0, band1, ..."""

    config: DeduplicateConfig
    seed: int
    folder: Path

    def __call__(self, item: str) -> str:
        """Sign the shard that `item` names, unless it is done."""
        shard = shard_of(item)
        target = signature_path(self.folder, shard)
        if target.is_file():
            return ""
        from training.corpus.dedup.kernels import sign

        table = read_parquet(shard.path, ["id", "text"])
        multipliers, additions = permutations(self.seed, self.config.bands * self.config.rows)
        bands = band_places(self.config)
        keys, whole, counts = sign(
            *text_buffers(table["text"]), letters(), self.config.ngram, multipliers, additions, bands
        )
        columns: dict[str, Any] = {"id": table["id"].combine_chunks(), "words_low": whole[0], "words_high": whole[1]}
        columns |= {"ngrams": counts} | {f"band{band}": keys[band] for band in range(len(bands))}
        write_bytes(target, _arrow_bytes(pa.table(columns).combine_chunks()))
        return ""


class Signatures:
    """The signatures of all shards. Document i of the corpus is row i - first[s] of the shard s."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self._tables = [_read_arrow(signature_path(folder, shard)) for shard in shards]
        self.first: Integers = np.cumsum([0, *(len(table) for table in self._tables)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.first[-1])

    def column(self, name: str) -> NDArray[Any]:
        """One number of every document."""
        parts = [table[name].to_numpy() for table in self._tables]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @cached_property
    def counts(self) -> Integers:
        """Each document's n-grams; 0 where there is no word."""
        return self.column("ngrams")

    def ids(self, documents: Integers) -> pa.Array:
        """The ids of the documents of these numbers, ascending."""
        parts = [
            self._tables[shard]["id"].combine_chunks().take(pa.array(rows)).cast(pa.large_string())
            for shard, rows in self.by_shard(documents)
        ]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.large_string())

    def shard_numbers(self, documents: Integers) -> Integers:
        """Which shard each document is in."""
        return np.searchsorted(self.first, documents, side="right") - 1

    def by_shard(self, documents: Integers) -> list[tuple[int, Integers]]:
        """Ascending documents as rows of their shards, of shards that have any."""
        cuts = np.searchsorted(documents, self.first)
        return [
            (shard, documents[cuts[shard] : cuts[shard + 1]] - self.first[shard])
            for shard in range(len(self.shards))
            if cuts[shard] < cuts[shard + 1]
        ]


def permutations(seed: int, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Odd multipliers and summands of `count` maps h -> a h + b of 32 bits, by SplitMix64 (Steele et al. 2014)."""
    state = seed & _WORD_BITS
    values = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _WORD_BITS
        value = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD_BITS
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD_BITS
        values.append(value ^ (value >> 31))
    both = np.array(values, np.uint64)
    return (both >> np.uint64(32)).astype(np.uint32) | np.uint32(1), both.astype(np.uint32)


def band_places(config: DeduplicateConfig) -> Integers:
    """Which hashes each band holds: [arrangements x bands, rows].

    In the first arrangement they follow each other. In the others a band takes one of each `bands` hashes, so that two
    bands have few in common.
    """
    band, row = np.arange(config.bands)[:, None], np.arange(config.rows)[None, :]
    places = [band * config.rows + row]
    places += [row * config.bands + (band + turn * row) % config.bands for turn in range(config.arrangements - 1)]
    return np.concatenate(places).astype(np.int64)


def signature_path(folder: Path, shard: Shard) -> Path:
    """Where a shard's signatures are."""
    return folder / shard.dataset / f"{shard.name}.arrow"


def _arrow_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_arrow(path: Path) -> pa.Table:
    """Mapped into memory, so that only columns that are used are read."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
