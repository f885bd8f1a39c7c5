"""Megatron's .bin/.idx index and blending, which are shared with Megatron-LM: the one place that imports them."""

import warnings
from typing import Any


def indexed_dataset() -> Any:
    """The module `megatron.core.datasets.indexed_dataset`, without the warnings about GPU libraries it can use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset as module
    return module


def blending_helpers() -> Any:
    """The compiled module `megatron.core.datasets.helpers_cpp`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import helpers_cpp as module
    return module
