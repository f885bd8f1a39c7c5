"""Time of collectives and transfers by where a layout's ranks sit."""

from training.parallel.layout import Layout
from training.planner.cluster import Cluster
from training.planner.hardware import Link, Links


def reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """An all-reduce of `size` bytes over a ring: 2 (n - 1) / n of them cross every link."""
    if ranks == 1:
        return 0.0
    return 2 * ((ranks - 1) / ranks * size / link.bytes_per_second + (ranks - 1) * link.seconds)


def gather_seconds(size: float, ranks: int, link: Link) -> float:
    """An all-gather to, or a reduce-scatter of, `size` bytes on every rank: half an all-reduce."""
    return reduce_seconds(size, ranks, link) / 2


class Wiring:
    """The links that a layout's groups use in a cluster whose links are known."""

    def __init__(self, cluster: Cluster, layout: Layout) -> None:
        if cluster.links is None:
            raise ValueError("the cluster has no links")
        self._cluster, self._layout, self._links = cluster, layout, cluster.links

    @property
    def slices(self) -> Link:
        """Of a tensor group."""
        return self._group(self._layout.tensor_parallel_size, stride=1)

    @property
    def replicas(self) -> Link:
        """Of a data group."""
        return self._group(self._layout.data_parallel_size, stride=self._layout.tensor_parallel_size)

    @property
    def single_replicas(self) -> Link:
        """Of a data group whose ring crosses nodes over one device's network alone."""
        per_node = self._cluster.gpus_per_node // self._layout.tensor_parallel_size
        return self._links.node if self._layout.data_parallel_size <= per_node else _network(self._links)

    @property
    def inside(self) -> Link:
        """Of a node."""
        return self._links.node

    def boundary(self, sender: int, receiver: int) -> Link:
        """Between the ranks of two stages that hold the same slice and replica."""
        layout = self._layout
        size = layout.tensor_parallel_size * layout.data_parallel_size
        crossing = any(
            self._cluster.node_of(sender * size + rank) != self._cluster.node_of(receiver * size + rank)
            for rank in {0, size - 1, (size - 1) // 2}
        )
        return _network(self._links) if crossing else self._links.node

    def _group(self, ranks: int, stride: int) -> Link:
        """The link of a ring over `ranks` ranks `stride` apart: a node's part of them share its network devices."""
        per_node = max(1, self._cluster.gpus_per_node // stride)
        if ranks <= per_node:
            return self._links.node
        network = _network(self._links)
        each = network.collective_gb_per_second or network.gb_per_second
        rate = min(per_node * each.value, self._links.node.gb_per_second.value) if per_node > 1 else each.value
        return network.model_copy(update={"gb_per_second": each.model_copy(update={"value": rate})})


def _network(links: Links) -> Link:
    # A single node has no other: its own link stands for it.
    return links.network or links.node
