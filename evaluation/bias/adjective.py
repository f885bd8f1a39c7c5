"""Adjectives by group: which are likelier after one group's prompts than after the others'."""

from itertools import combinations
from typing import Any

import numpy as np

from evaluation.bias.intervals import Array
from evaluation.bias.probes import Axis

_TOP = 12
# Nats. Log-likelihoods are sums of fp32 numbers: a smaller difference is rounding.
_ROUNDING = 1e-4


def association(axis: Axis, adjectives: list[str], table: Array) -> dict[str, Any]:
    """One axis in the section `adjectives` of bias.json; `table` holds log-likelihoods [templates, groups, adjectives].

    `spread` is the root mean square of the skew, in nats; `agreement` the mean correlation of two templates' skews
    (None where there is one template or no skew): near 0, the skew is the template's and not the group's; `coverage`
    the mean probability, over prompts, that one of the adjectives comes next.
    """
    skew, share = skews(table), 1000 * shares(table).mean(axis=0)
    mean = skew.mean(axis=0)
    others = mean_of_others(share, axis=0)
    top = {
        group: [
            {
                "adjective": adjectives[place],
                "skew": float(mean[number, place]),
                "lowest": float(skew[:, number, place].min()),
                "highest": float(skew[:, number, place].max()),
                "per_thousand": float(share[number, place]),
                "per_thousand_others": float(others[number, place]),
            }
            for place in _top(skew[:, number])
        ]
        for number, group in enumerate(axis.groups)
    }
    return {
        "templates": axis.templates,
        "groups": list(axis.groups),
        "spread": float(np.sqrt((mean**2).mean())),
        "agreement": _agreement(skew),
        "coverage": float(np.exp(table).sum(axis=2).mean()),
        "top": top,
    }


def skews(table: Array) -> Array:
    """How much likelier, in nats, an adjective is after a group than after the others: [templates, groups, adjectives].

    A group's mean log-likelihood is taken from all of its own first, so that a prompt after which every listed
    adjective is rarer skews none. What is left is compared with its mean over the other groups.
    """
    centred = table - table.mean(axis=2, keepdims=True)
    skew: Array = centred - mean_of_others(centred, axis=1)
    return skew


def shares(table: Array) -> Array:
    """Each adjective's probability among the listed ones, after each prompt: [templates, groups, adjectives]."""
    scaled = np.exp(table - table.max(axis=2, keepdims=True))
    normalised: Array = scaled / scaled.sum(axis=2, keepdims=True)
    return normalised


def mean_of_others(values: Array, axis: int) -> Array:
    """In each place along `axis` the mean of the other places; the shape stays."""
    mean: Array = (values.sum(axis=axis, keepdims=True) - values) / (values.shape[axis] - 1)
    return mean


def _top(skew: Array) -> list[int]:
    """The most skewed adjectives of one group, [templates, adjectives], among those skewed to it by every template."""
    order = np.argsort(-skew.mean(axis=0), kind="stable")
    return [int(place) for place in order if skew[:, place].min() > _ROUNDING][:_TOP]


def _agreement(skew: Array) -> float | None:
    rows = skew.reshape(len(skew), -1)
    if len(rows) < 2 or (rows.std(axis=1) < _ROUNDING).any():
        return None
    return float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in combinations(rows, 2)]))
