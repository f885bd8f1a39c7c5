"""Estimates with 95 % intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from evaluation.statistics import wilson_bounds

Array = npt.NDArray[np.float64]

_CONFIDENCE = 0.95
_DRAWS = 2000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def wilson_interval(successes: float, trials: int) -> Estimate:
    """A share of trials; Wilson 1927's score interval, which stays within [0, 1] and is not empty at its ends."""
    share = successes / trials
    low, high = wilson_bounds(share, trials, _normal_quantile())
    return Estimate(share, low, high)


def mean_interval(values: Array) -> Estimate:
    """A mean of independent values [n], with the normal approximation's interval."""
    mean, half = float(values.mean()), _normal_quantile() * float(values.std(ddof=1)) / len(values) ** 0.5
    return Estimate(mean, mean - half, mean + half)


def bootstrap(statistic: Callable[[Array, Array], Array], table: Array, weights: Array, seed: int) -> list[Estimate]:
    """A statistic [k] of `table` [templates, groups, words] and `weights` [words], each entry with an interval.

    Percentile bootstrap (Efron 1979). Templates and words are drawn anew, groups are not: all of a draw's groups see
    the same templates and words, so that what is said of their differences is paired.
    """
    generator = np.random.default_rng(seed)
    templates, _, words = table.shape
    draws = []
    for _ in range(_DRAWS):
        rows = generator.integers(templates, size=templates)
        columns = generator.integers(words, size=words)
        draws.append(statistic(table[rows][:, :, columns], weights[columns]))
    tail = (1 - _CONFIDENCE) / 2
    lows, highs = np.quantile(np.stack(draws), [tail, 1 - tail], axis=0)
    values = statistic(table, weights)
    return [
        Estimate(float(value), float(low), float(high)) for value, low, high in zip(values, lows, highs, strict=True)
    ]


def _normal_quantile() -> float:
    return NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
