"""Which layers each pipeline stage holds, as DeepSpeed will decide, and how many parameters that is a rank."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from training.model.config import ModelConfig
from training.model.tensors import LayerKind, layer_kinds, layer_tensors
from training.parallel.layout import Layout


def partition_balanced(weights: Sequence[int], num_parts: int) -> list[int]:
    """Bounds of `num_parts` runs of consecutive items, those of `deepspeed.runtime.utils.partition_balanced`.

    The same dynamic programme: the heaviest part less the lightest is least, and among equals the last cut wins,
    which decides where the layers without weight go. There must be more items than parts.
    """
    count = len(weights)
    prefix = [0, *accumulate(weights)]
    # best[j][i]: (heaviest, lightest, last cut) of the first i items in j parts.
    best: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, math.inf, 0)}]
    for part in range(1, num_parts + 1):
        best.append({end: _best_last_cut(prefix, best[-1], part, end) for end in range(part, count + 1)})
    bounds = [count]
    for part in range(num_parts, 0, -1):
        bounds.append(best[part][bounds[-1]][2])
    return bounds[::-1]


def _best_last_cut(
    prefix: Sequence[int], shorter: dict[int, tuple[float, float, int]], part: int, end: int
) -> tuple[float, float, int]:
    best, least = (math.inf, 0.0, part - 1), math.inf
    for cut in range(part - 1, end):
        if cut not in shorter:
            continue
        weight = prefix[end] - prefix[cut]
        heaviest, lightest = max(shorter[cut][0], weight), min(shorter[cut][1], weight)
        if heaviest - lightest <= least:
            best, least = (heaviest, lightest, cut), heaviest - lightest
    return best


def stage_layers(model: ModelConfig, num_stages: int) -> list[range]:
    """The numbers of the pipeline layers of each stage (see `layer_kinds`), blocks spread evenly."""
    weights = tuple(int(kind is LayerKind.BLOCK) for kind in layer_kinds(model))
    return [range(first, last) for first, last in pairwise(_bounds(weights, num_stages))]


@lru_cache(maxsize=256)
def _bounds(weights: tuple[int, ...], num_parts: int) -> tuple[int, ...]:
    # A search asks for the same stages hundreds of times.
    return tuple(partition_balanced(weights, num_parts))


def count_blocks(model: ModelConfig, layers: range) -> int:
    """How many of these pipeline layers are transformer blocks."""
    kinds = layer_kinds(model)
    return sum(kinds[layer] is LayerKind.BLOCK for layer in layers)


def rank_parameters(model: ModelConfig, layout: Layout, layers: range) -> int:
    """Parameters that each rank of the stage with these layers holds.

    A last stage without the word embedding holds a second copy of its slice: the tied head.
    """
    owners = list(layers)
    kinds = layer_kinds(model)
    if len(kinds) - 1 in layers and 0 not in layers:
        owners.append(0)
    # All blocks are alike.
    like = [kinds.index(kinds[layer]) for layer in owners]
    return sum(_layer_parameters(model, layout.tensor_parallel_size, layer) for layer in like)


@lru_cache(maxsize=1024)
def _layer_parameters(model: ModelConfig, tensor_parallel_size: int, layer: int) -> int:
    return sum(math.prod(spec.slice_shape(model, tensor_parallel_size)) for spec in layer_tensors(model, layer))
