"""How sure an accuracy and a difference of two are: intervals, paired tests, correction for many tests.

Documents are a sample of all that the task might have asked. Where several share something (an article, a template)
they are a cluster: clusters are independent of each other, documents of one are not. Formulas and their sources stand
at the functions.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

_CONFIDENCE = 0.95
# Quantile that bounds a two-sided interval.
_UPPER = 0.5 + _CONFIDENCE / 2

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An accuracy as a fraction, its standard error, and the bounds of its 95 % interval."""

    value: float
    stderr: float
    low: float
    high: float
    documents: int
    clusters: int


@dataclass(frozen=True)
class PairedDifference:
    """Two runs on the same documents: the second's accuracy minus the first's, as a fraction, with a 95 % interval.

    `gained` documents are right in the second alone, `lost` in the first alone. `p_value` is two-sided, `p_worse`
    one-sided against "the second is worse". `design_effect` is how many times clusters widen the variance, at least 1.
    """

    value: float
    stderr: float
    low: float
    high: float
    documents: int
    clusters: int
    gained: int
    lost: int
    p_value: float
    p_worse: float
    design_effect: float


def accuracy_interval(scores: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of scores of 0 or 1, with its standard error and 95 % interval.

    `clusters` gives each document's cluster; documents are independent without. The standard error is the
    cluster-robust one (Liang and Zeger 1986; Miller 2024, "Adding Error Bars to Evals"), of G clusters c and n
    documents sqrt(G/(G-1) * sum_c (sum_i (s_ic - mean))^2) / n; with a cluster a document it is the standard error of a
    mean, s/sqrt(n). The interval is Wilson's (1927), which stays within [0, 1] and has a width where all documents are
    right. For clusters n becomes the effective number mean * (1 - mean) / stderr^2, n at most and G where all scores
    are alike, and the normal quantile Student's of G-1 degrees of freedom (Korn and Graubard 1998; Franco et al. 2019).

    One cluster, or document, says nothing about spread: its standard error is 0.5, the largest there can be, and the
    interval of one cluster is [0, 1]. Raises ValueError when there are no scores, one is neither 0 nor 1, or the
    lengths differ.
    """
    values, codes = _checked(scores), _codes(clusters, len(scores))
    documents, groups = len(values), len(np.unique(codes))
    mean = float(values.mean())
    stderr = _stderr(values, codes, largest=0.5)
    if clusters is None:
        low, high = wilson_bounds(mean, documents, float(ndtri(_UPPER)))
    elif groups == 1:
        low, high = 0.0, 1.0
    else:
        spread = mean * (1 - mean)
        alike = groups if spread == 0 else documents
        effective = min(documents, spread / stderr**2) if stderr > 0 else alike
        low, high = wilson_bounds(mean, effective, float(stdtrit(groups - 1, _UPPER)))
    return Interval(mean, stderr, low, high, documents, groups)


def paired_difference(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Hashable] | None = None
) -> PairedDifference:
    """The second run's scores of 0 or 1 against the first's, document by document.

    Test: each cluster's sum of differences gets either sign with probability 1/2, as it would if nothing set the runs
    apart, and the total is compared with its exact distribution, ties counted half (mid-p). Randomisation over
    clusters: Canay, Romano and Shaikh 2017. With a cluster a document it is McNemar's exact test with mid-p, which
    Fagerland, Lydersen and Laake (2013) recommend over the plain exact test.

    Interval: of documents, Wald's after one document more for each side (Bonett and Price 2012), which has a width
    where no document differs. Of clusters, the same two, each its own cluster, then the cluster-robust standard error
    and Student's quantile of G-1 degrees of freedom; [-1, 1] for one cluster. Raises ValueError as `accuracy_interval`.
    """
    before, after = _checked(first), _checked(second)
    if len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} scores: a paired test needs the same documents")
    codes = _codes(clusters, len(before))
    difference = after - before
    worse = _sign_flip_p(_sums(difference, codes))
    low, high = _difference_interval(difference, None if clusters is None else codes)
    return PairedDifference(
        value=float(difference.mean()),
        stderr=_stderr(difference, codes, largest=1.0),
        low=low,
        high=high,
        documents=len(difference),
        clusters=len(np.unique(codes)),
        gained=int((difference > 0).sum()),
        lost=int((difference < 0).sum()),
        p_value=min(1.0, 2 * min(worse, 1 - worse)),
        p_worse=worse,
        # Where no document differs, the nearest guess at how differences would cluster is how right answers do.
        design_effect=_design_effect(difference if difference.any() else before, codes),
    )


def detectable_drop(difference: PairedDifference, alpha: float, power: float = 0.8) -> float | None:
    """The smallest drop of the second run, as a fraction, that a one-sided test at `alpha` finds with `power`.

    Solves Connor's (1987) equation for McNemar's test, drop * sqrt(n) = z_alpha * sqrt(d) + z_power * sqrt(d - drop^2),
    with n the documents over the design effect and d, the fraction of documents that differ, twice the fraction that
    the second run gained (one added) plus the drop. None where no result could be significant, however bad.
    """
    if 0.5 ** (difference.clusters + 1) > alpha:
        return None
    documents = difference.documents / difference.design_effect
    gained = (difference.gained + 1) / (difference.documents + 2)
    level, reach = -float(ndtri(alpha)), float(ndtri(power))

    def surplus(drop: float) -> float:
        differing = min(1.0, 2 * gained + drop)
        needed = level * math.sqrt(differing) + reach * math.sqrt(max(0.0, differing - drop**2))
        return drop * math.sqrt(documents) - needed

    low, high = 0.0, 1.0
    if surplus(high) < 0:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if surplus(middle) >= 0 else (middle, high)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number by Holm's (1979) step-down method, in the order given."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _checked(scores: Sequence[float]) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError("no scores")
    if not np.isin(values, (0.0, 1.0)).all():
        raise ValueError("a score is neither 0 nor 1")
    return values


def _codes(clusters: Sequence[Hashable] | None, documents: int) -> Integers:
    """A number a cluster, from 0, for each document."""
    if clusters is None:
        return np.arange(documents)
    if len(clusters) != documents:
        raise ValueError(f"{documents} scores but {len(clusters)} clusters")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)


def _sums(values: Floats, codes: Integers) -> Floats:
    """Sum of the values of each cluster."""
    return np.asarray(np.bincount(codes, weights=values), dtype=np.float64)


def _stderr(values: Floats, codes: Integers, largest: float) -> float:
    """Cluster-robust standard error of the mean; `largest` where one cluster leaves it undefined."""
    sums = _sums(values - values.mean(), codes)
    groups = len(sums)
    if groups == 1:
        return largest
    return math.sqrt(groups / (groups - 1) * float(sums @ sums)) / len(values)


def _design_effect(values: Floats, codes: Integers) -> float:
    """Variance of the mean with clusters over that without."""
    alone = _stderr(values, np.arange(len(values)), largest=1.0)
    return max(1.0, (_stderr(values, codes, largest=1.0) / alone) ** 2) if alone > 0 else 1.0


def wilson_bounds(mean: float, documents: float, quantile: float) -> tuple[float, float]:
    """Wilson's score interval; the bound at a mean of 0 or 1 is exactly that."""
    square = quantile**2 / documents
    centre = (mean + square / 2) / (1 + square)
    half = quantile / (1 + square) * math.sqrt(mean * (1 - mean) / documents + square / (4 * documents))
    # The score interval holds the mean; rounding must not lose it.
    return min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half))


def _difference_interval(difference: Floats, codes: Integers | None) -> tuple[float, float]:
    values = np.concatenate([difference, [1.0, -1.0]])
    mean = float(values.mean())
    if codes is None:
        half = float(ndtri(_UPPER)) * math.sqrt(float(values.var()) / len(values))
    else:
        groups = int(codes.max()) + 1
        if groups == 1:
            return -1.0, 1.0
        extended = np.concatenate([codes, [groups, groups + 1]])
        half = float(stdtrit(groups - 1, _UPPER)) * _stderr(values, extended, largest=1.0)
    return max(-1.0, mean - half), min(1.0, mean + half)


def _sign_flip_p(sums: Floats) -> float:
    """Probability of a total as low as that of `sums`, ties counted half, when each has either sign alike."""
    signed = np.rint(sums).astype(np.int64)
    steps = np.abs(signed[signed != 0])
    # Of the sums with a positive sign, the total size: its distribution over 0..sum(steps), a cluster at a time.
    chances = np.zeros(int(steps.sum()) + 1)
    chances[0], top = 1.0, 0
    for step in steps.tolist():
        chances[: top + 1] *= 0.5
        chances[step : top + step + 1] += chances[: top + 1].copy()
        top += step
    positive = int(signed[signed > 0].sum())
    return float(chances[:positive].sum() + chances[positive] / 2)
