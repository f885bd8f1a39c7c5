"""Which documents may be alike: those of equal words, and those that share a band."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from training.corpus.dedup.signatures import Integers, Signatures


@dataclass(frozen=True)
class Candidates:
    """What is worth a look, by numbers of documents.

    `leader` [documents]: of documents of equal words the one that stands for all, else itself.
    `involved` [n], ascending: documents that have an equal or share a band. `rank` [n]: their places in the order of
    priority. `sets` [m]: leaders that share a band, by the best rank among their equals. Bucket i, of those that share
    one band, is members[starts[i]:starts[i + 1]]: ascending places in `sets`.
    """

    leader: Integers
    involved: Integers
    rank: Integers
    sets: Integers
    members: Integers
    starts: Integers


def find_candidates(signatures: Signatures, bands: int, priority: Mapping[str, int]) -> Candidates:
    """Equal documents, and the buckets of their leaders. Memory: about 60 bytes a document, and as many a core."""
    leader = _leaders(signatures)
    members, starts = _buckets(signatures, leader, bands)
    numbers = np.arange(len(signatures))
    apart = leader != numbers
    involved = np.unique(np.concatenate([members, numbers[apart], leader[apart]]))
    rank = _ranks(signatures, involved, priority)
    # A leader ranks as the best of those for which it stands.
    best = rank.copy()
    np.minimum.at(best, np.searchsorted(involved, leader[involved]), rank)
    sets = np.unique(members)
    sets = sets[np.argsort(best[np.searchsorted(involved, sets)])]
    order = np.argsort(sets)
    members = order[np.searchsorted(sets[order], members)]
    bucket = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    members = members[np.lexsort((members, bucket))]
    return Candidates(leader, involved, rank, sets, members, starts)


def _leaders(signatures: Signatures) -> Integers:
    low, high = signatures.column("words_low"), signatures.column("words_high")
    order = np.lexsort((high, low))
    order = order[signatures.counts[order] > 0]
    begins = np.ones(len(order), bool)
    begins[1:] = (low[order[1:]] != low[order[:-1]]) | (high[order[1:]] != high[order[:-1]])
    leader = np.arange(len(signatures))
    # The sort is stable, so a run's first is its least.
    leader[order] = order[begins][np.cumsum(begins) - 1]
    return leader


def _buckets(signatures: Signatures, leader: Integers, bands: int) -> tuple[Integers, Integers]:
    """Documents of all buckets of two or more, end to end, in the order of band and key; where buckets begin."""
    compared = np.flatnonzero((leader == np.arange(len(leader))) & (signatures.counts > 0))

    def band(number: int) -> tuple[Integers, Integers]:
        keys = signatures.column(f"band{number}")[compared]
        order = np.argsort(keys)
        keys = keys[order]
        again = np.zeros(len(keys) + 1, bool)  # equal to the one before
        again[1:-1] = keys[1:] == keys[:-1]
        shared = again[:-1] | again[1:]
        begins = np.flatnonzero(~again[:-1][shared])
        return compared[order[shared]], np.append(begins, np.count_nonzero(shared))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(band, range(bands)))
    sizes = np.concatenate([np.diff(starts) for _, starts in found])
    return np.concatenate([members for members, _ in found]), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _ranks(signatures: Signatures, documents: Integers, priority: Mapping[str, int]) -> Integers:
    """The places of documents in the order of their datasets' priority, then of their ids' bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    levels = np.array([priority[shard.dataset] for shard in signatures.shards], np.int64)
    level = levels[signatures.shard_numbers(documents)] if len(documents) else np.zeros(0, np.int64)
    table = pa.table({"level": level, "id": signatures.ids(documents)})
    order = pc.sort_indices(table, sort_keys=[("level", "ascending"), ("id", "ascending")]).to_numpy()
    rank = np.empty(len(documents), np.int64)
    rank[order] = np.arange(len(documents))
    return rank
