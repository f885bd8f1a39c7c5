"""Process groups of a layout, made once by every rank."""

import torch.distributed as dist

from training.parallel.collectives import TensorSlice
from training.parallel.layout import Layout


def make_tensor_slice(layout: Layout, rank: int) -> TensorSlice:
    """This rank's part in its tensor-parallel group. Every rank must call it, at the same point."""
    if layout.tensor_parallel_size == 1:
        return TensorSlice()
    # new_group is collective: every rank makes every group.
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in layout.tensor_groups()}
    mine = next(group for ranks, group in groups.items() if rank in ranks)
    return TensorSlice(layout.coordinate(rank).tensor, layout.tensor_parallel_size, mine, layout.sequence_parallel)
