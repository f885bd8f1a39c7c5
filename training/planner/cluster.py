"""Which rank sits on which node."""

from pydantic import Field

from foundation.config import StrictModel, load_config, named_config
from foundation.errors import UserError
from training.parallel.layout import Layout
from training.planner.hardware import Device, Links, Sourced
from training.planner.software import EngineName


class Cluster(StrictModel):
    """The machines of a run: a file in `configs/cluster/`."""

    base: str | None = Field(default=None, description="another cluster, whose values hold where this file has none")
    gpus_per_node: int = Field(default=8, ge=1)
    gpu_memory_gib: float | None = Field(default=None, gt=0, description="of one device; none: not checked")
    nodes: int | None = Field(default=None, ge=1, description="none: as many as the layout takes")
    device: Device | None = Field(default=None, description="none: time cannot be planned")
    links: Links | None = None
    dollars_per_gpu_hour: Sourced | None = None
    reserved_gib: float = Field(default=0.0, ge=0, description="of a device's memory: context, communication buffers")
    engine: EngineName = Field(default=EngineName.mtnlg, description="the software that mtnlg plan assumes")

    @property
    def timed(self) -> bool:
        """Whether enough is known to plan time."""
        return self.device is not None and self.links is not None

    def nodes_of(self, layout: Layout) -> int:
        """Nodes that the layout's ranks fill. Raises UserError when there are fewer."""
        needed = -(-layout.world_size // self.gpus_per_node)
        if self.nodes is not None and self.nodes < needed:
            raise UserError(
                f"the layout {layout} has {layout.world_size} ranks, and {self.nodes} nodes of {self.gpus_per_node} "
                f"GPUs hold {self.nodes * self.gpus_per_node}; it takes {needed} nodes"
            )
        return needed

    def node_of(self, rank: int) -> int:
        """The node of a rank: launchers fill one after the other."""
        return rank // self.gpus_per_node

    def stage_nodes(self, layout: Layout, stage: int) -> range:
        """The nodes of a pipeline stage, whose ranks follow each other."""
        size = layout.tensor_parallel_size * layout.data_parallel_size
        return range(self.node_of(stage * size), self.node_of((stage + 1) * size - 1) + 1)

    def split_tensor_groups(self, layout: Layout) -> int:
        """Tensor groups that do not lie within one node."""
        return sum(self.node_of(ranks[0]) != self.node_of(ranks[-1]) for ranks in layout.tensor_groups())


def load_cluster(name: str | None, gpus_per_node: int | None, nodes: int | None) -> Cluster:
    """The cluster called `name`, or of that file, with the other arguments in place of its values where given.

    Raises UserError when there is none.
    """
    cluster = Cluster() if name is None else _load(name)
    given = {"gpus_per_node": gpus_per_node, "nodes": nodes}
    return cluster.model_copy(update={key: value for key, value in given.items() if value is not None})


def _load(name: str) -> Cluster:
    cluster = load_config(Cluster, named_config("cluster", name))
    if cluster.base is None:
        return cluster
    own = {key: getattr(cluster, key) for key in cluster.model_fields_set}
    return _load(cluster.base).model_copy(update=own)
