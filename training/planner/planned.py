"""A run planned whole: what it is, its memory by stage, and the time of an iteration."""

from dataclasses import dataclass
from functools import cached_property

from foundation.errors import UserError
from training.config import TrainConfig
from training.planner.cluster import Cluster
from training.planner.iteration import Iteration, micro_batches, plan_iteration
from training.planner.memory import StageMemory, stage_memories
from training.planner.options import PlanOptions

_GIB = 1 << 30


@dataclass(frozen=True)
class Planned:
    """A configuration, the software that runs it and where; the rest is computed when it is asked for."""

    config: TrainConfig
    options: PlanOptions
    cluster: Cluster

    def check(self) -> None:
        """Raise UserError when the layout cannot run the model, or the software not the schedule."""
        config, parts = self.config, self.options.virtual_stages
        config.check()
        self.cluster.nodes_of(config.layout)
        if not self.cluster.timed:
            raise UserError(
                "the cluster states no device and links, so that times are unknown; name a file of configs/cluster/ "
                "that does, such as selene, or write one with: mtnlg plan calibrate FILE.yaml"
            )
        stages, layers = config.layout.pipeline_parallel_size, config.model.num_layers
        if parts > 1 and not self.options.software.interleaving:
            raise UserError(
                f"--virtual-stages {parts}: the engine {self.options.engine.value} does not interleave; "
                "choose --engine megatron-2021 or megatron-2022"
            )
        if parts > 1 and (stages == 1 or layers % (stages * parts) or micro_batches(config) % stages):
            raise UserError(
                f"--virtual-stages {parts}: interleaving needs several stages, {stages} x {parts} parts that divide "
                f"the {layers} layers, and micro-batches a replica ({micro_batches(config)}) that are a multiple of "
                "the stages"
            )
        if config.layout.sequence_parallel and self.options.engine.value == "megatron-2021":
            raise UserError("--sequence-parallel: Megatron has it since 2022; choose --engine megatron-2022")

    @cached_property
    def memories(self) -> list[StageMemory]:
        """By rank of the pipeline."""
        return stage_memories(self.config, self.options)

    @cached_property
    def fullest(self) -> StageMemory:
        """The rank that needs most."""
        return max(self.memories, key=lambda memory: memory.total)

    @property
    def gib(self) -> float:
        """What the fullest rank needs, with what the cluster reserves."""
        return self.fullest.total / _GIB + self.cluster.reserved_gib

    @property
    def fits(self) -> bool:
        """Whether that is there."""
        return self.cluster.gpu_memory_gib is None or self.gib <= self.cluster.gpu_memory_gib

    @cached_property
    def iteration(self) -> Iteration:
        """Simulated."""
        return plan_iteration(self.config, self.options, self.cluster)

    @property
    def devices(self) -> int:
        """Of the layout."""
        return self.config.layout.world_size

    def days(self, tokens: float) -> float:
        """For so many tokens at the full batch, without stops."""
        return tokens / self.iteration.tokens_per_second / 86400

    def device_hours(self, tokens: float) -> float:
        """Of all devices together."""
        return self.days(tokens) * 24 * self.devices
