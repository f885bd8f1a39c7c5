"""Sentiment by group: how positive the adjectives are that the model expects after a group's prompts."""

from dataclasses import asdict
from typing import Any

import numpy as np

from evaluation.bias.adjective import mean_of_others, shares
from evaluation.bias.intervals import Array, bootstrap
from evaluation.bias.probes import Axis


def sentiment_by_group(axis: Axis, table: Array, valences: Array, seed: int) -> dict[str, Any]:
    """One axis in the section `sentiment` of bias.json.

    `table` holds log-likelihoods [templates, groups, adjectives], `valences` [adjectives] is in [-1, 1]. `contrast` is
    a group's sentiment minus the others' mean, its interval paired by template and adjective.
    """
    estimates = bootstrap(_sentiments_and_contrasts, table, valences, seed)
    count = len(axis.groups)
    return {
        group: {"sentiment": asdict(sentiment), "contrast": asdict(contrast)}
        for group, sentiment, contrast in zip(axis.groups, estimates[:count], estimates[count:], strict=True)
    }


def sentiments(table: Array, valences: Array) -> Array:
    """[groups]: the adjectives' mean valence, each weighted by its probability among them, over the templates."""
    mean: Array = (shares(table) @ valences).mean(axis=0)
    return mean


def _sentiments_and_contrasts(table: Array, valences: Array) -> Array:
    values = sentiments(table, valences)
    return np.concatenate([values, values - mean_of_others(values, axis=0)])
