"""Documents that are alike, directly or by way of others, and the one of each cluster that is kept."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.corpus.dedup.candidates import Candidates
from training.corpus.dedup.signatures import Integers
from training.corpus.dedup.verification import NgramSets


@dataclass(frozen=True)
class Clusters:
    """Members of clusters of two or more, cluster by cluster, by priority: the first of each is kept.

    All are of one length: numbers of the documents and of those kept for them, of the clusters (in the order of what
    they keep), exact Jaccard similarities with what is kept, and whether all words are equal.
    """

    documents: Integers
    kept: Integers
    clusters: Integers
    similarity: NDArray[np.float64]
    equal: NDArray[np.bool_]


def connect(candidates: Candidates, sets: NgramSets, edges: Integers) -> Clusters:
    """Connected components of the `edges` [2, n] and of equal documents."""
    from training.corpus.dedup.kernels import connected_components

    involved, leader = candidates.involved, candidates.leader
    size = len(involved)
    left = np.concatenate([np.searchsorted(involved, edges[0]), np.arange(size)])
    right = np.concatenate([np.searchsorted(involved, edges[1]), np.searchsorted(involved, leader[involved])])
    label = connected_components(left, right, size)
    first = np.full(size, size)
    np.minimum.at(first, label, candidates.rank)
    best = first[label]
    joined = np.bincount(label, minlength=size)[label] > 1
    order = np.lexsort((candidates.rank, best))
    order = order[joined[order]]
    by_rank = np.empty(size, np.int64)
    by_rank[candidates.rank] = involved
    documents, kept = involved[order], by_rank[best[order]]
    equal = leader[documents] == leader[kept]
    similarity = np.ones(len(documents))
    similarity[~equal] = _similarities(candidates, sets, leader[documents[~equal]], leader[kept[~equal]])
    _, clusters = np.unique(best[order], return_inverse=True)
    return Clusters(documents, kept, clusters.astype(np.int64), similarity, equal)


def _similarities(candidates: Candidates, sets: NgramSets, left: Integers, right: Integers) -> NDArray[np.float64]:
    order = np.argsort(candidates.sets)
    ascending = candidates.sets[order]
    return sets.similarities(order[np.searchsorted(ascending, left)], order[np.searchsorted(ascending, right)])
