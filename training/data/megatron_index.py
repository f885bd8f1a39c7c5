"""Megatron's .bin/.idx index, which is shared with Megatron-LM: the one place that imports it."""

import warnings
from typing import Any


def indexed_dataset() -> Any:
    """The module `megatron.core.datasets.indexed_dataset`, without the warnings about GPU libraries it can use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset as module
    return module
