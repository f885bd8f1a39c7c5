"""The time of one iteration, and where it goes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from training.config import TrainConfig
from training.model.config import ModelConfig
from training.planner.cluster import Cluster
from training.planner.collectives import Wiring, gather_seconds, reduce_seconds
from training.planner.costs import ChunkCosts, CostModel
from training.planner.flops import hardware_flops, model_flops
from training.planner.hardware import Device
from training.planner.options import PlanOptions
from training.planner.simulate import Event, Times, simulate
from training.planner.stages import rank_parameters, stage_layers

_CONTENTION_ROUNDS = 3


@dataclass(frozen=True)
class Split:
    """Seconds of an iteration by what they are spent on, the mean over the pipeline's ranks; they add up to it.

    `slices`: waiting for tensor-parallel collectives; `accumulate`: adding gradients to the step's sums; `transfers`:
    handing micro-batches over; `bubble`: waiting for other stages; `replicas`: the gradients' reduction, as far as
    nothing hides it, and the tied embedding's; `optimizer`: with the gathering of what ZeRO divided.
    """

    forward: float
    backward: float
    recompute: float
    slices: float
    accumulate: float
    transfers: float
    bubble: float
    replicas: float
    optimizer: float

    @property
    def total(self) -> float:
        """The iteration."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Iteration:
    """A planned iteration: its time, the split of it, the pipeline's events by rank, and what that comes to.

    `recomputing` are the seconds of recomputation that every backward pass begins with, by stage of the model;
    `reducing` those of the replicas' reduction that follow a rank's events.
    """

    config: TrainConfig
    options: PlanOptions
    device: Device
    split: Split
    events: list[list[Event]]
    recomputing: list[float]
    reducing: list[float]

    @property
    def seconds(self) -> float:
        """Of one iteration."""
        return self.split.total

    @property
    def bubble(self) -> float:
        """Idle share of the iteration."""
        return self.split.bubble / self.seconds

    @property
    def closed_bubble(self) -> float:
        """Idle time over the rest, of equal stages: (p - 1) / (v m) (Narayanan et al. 2021, section 2.2)."""
        return (self.config.layout.pipeline_parallel_size - 1) / (
            self.options.virtual_stages * micro_batches(self.config)
        )

    @cached_property
    def tflops(self) -> float:
        """10^12 FLOPs performed a second and rank, those of recomputation included."""
        recomputation = self.config.training.recomputation
        model, vocabulary, batch = self._sizes
        return hardware_flops(model, vocabulary, batch, recomputation) / self._rank_seconds / 1e12

    @property
    def hardware_utilisation(self) -> float:
        """Share of the peak that the FLOPs performed are (HFU)."""
        return self.tflops / self.device.peak_tflops.value

    @property
    def model_utilisation(self) -> float:
        """Share of the peak that the FLOPs needed are (MFU)."""
        return model_flops(*self._sizes) / self._rank_seconds / self.device.peak

    @property
    def tokens_per_second(self) -> float:
        """Of the whole run."""
        config = self.config
        return config.training.global_batch_size * config.model.sequence_length / self.seconds

    @property
    def _sizes(self) -> tuple[ModelConfig, int, int]:
        model = self.config.model
        vocabulary = model.padded_vocab_size(self.config.layout.tensor_parallel_size)
        return model, vocabulary, self.config.training.global_batch_size

    @property
    def _rank_seconds(self) -> float:
        return self.seconds * self.config.layout.world_size


def micro_batches(config: TrainConfig) -> int:
    """Of one replica and iteration."""
    return config.training.global_batch_size // (config.training.micro_batch_size * config.layout.data_parallel_size)


def plan_iteration(config: TrainConfig, options: PlanOptions, cluster: Cluster) -> Iteration:
    """Simulate an iteration. Raises ValueError when the cluster's times are not known."""
    if cluster.device is None:
        raise ValueError("the cluster has no device")
    device = cluster.device
    wiring = Wiring(cluster, config.layout)
    chunks = CostModel(config, options, device, wiring).chunks()
    slowdown = _slowdown(config, device, float(config.layout.world_size))
    iteration = _simulated(config, options, device, wiring, chunks, slowdown)
    for _ in range(_CONTENTION_ROUNDS if device.cores else 0):
        slowdown = _slowdown(config, device, config.layout.world_size * (1 - iteration.bubble))
        iteration = _simulated(config, options, device, wiring, chunks, slowdown)
    return iteration


def _slowdown(config: TrainConfig, device: Device, active: float) -> float:
    """How much slower than one core a rank is, when `active` ranks share the cores on average."""
    cores = device.cores
    if cores is None:
        return 1.0
    threads = max(1, cores.count // config.layout.world_size)
    # With one thread a rank cannot be faster than one core.
    return max(1.0 if threads == 1 else 0.0, active / cores.speedup.value)


def _simulated(
    config: TrainConfig,
    options: PlanOptions,
    device: Device,
    wiring: Wiring,
    chunks: Sequence[ChunkCosts],
    slowdown: float,
) -> Iteration:
    ranks, count = config.layout.pipeline_parallel_size, micro_batches(config)
    times = Times(
        [chunk.forward_seconds * slowdown for chunk in chunks],
        [chunk.backward_seconds * slowdown for chunk in chunks],
        _boundaries(config, options, device, wiring, chunks),
        options.software.duplex,
    )
    events = simulate(times, ranks, count)
    ends = [rank_events[-1].sent for rank_events in events]
    step = StepCosts(config, options, device, wiring)
    last_backward = chunks[0].backward_seconds * slowdown
    computing = sum(chunk.forward_seconds + chunk.backward_seconds for chunk in chunks) / ranks * count * slowdown
    reducing = [
        step.gathered_weights(rank, count, computing) if options.zero >= 3 else step.replicas(rank, last_backward)
        for rank in range(ranks)
    ]
    together = max(end + reduction for end, reduction in zip(ends, reducing, strict=True))
    split = Split(0, 0, 0, 0, 0, 0, 0, 0, 0)
    optimizer = max(step.optimizer(rank) for rank in range(ranks)) * slowdown
    for rank in range(ranks):
        mine = chunks[rank::ranks]
        forward, backward, recompute, slices, accumulate = (
            sum(part) * count * slowdown for part in zip(*map(_parts, mine), strict=True)
        )
        transfers = sum(event.sent - event.end for event in events[rank])
        busy = forward + backward + recompute + slices + accumulate + transfers
        # What is left, but for what rounding leaves of nothing.
        bubble = max(0.0, together - reducing[rank] - busy)
        replicas = reducing[rank] + step.tied
        mine_split = Split(forward, backward, recompute, slices, accumulate, transfers, bubble, replicas, optimizer)
        split = _add(split, mine_split, ranks)
    recomputing = [chunk.recompute.total * slowdown for chunk in chunks]
    return Iteration(config, options, device, split, events, recomputing, reducing)


def _parts(chunk: ChunkCosts) -> tuple[float, float, float, float, float]:
    slices = chunk.forward.slices + chunk.backward.slices + chunk.recompute.slices
    return chunk.forward.compute, chunk.backward.compute, chunk.recompute.compute, slices, chunk.accumulate


def _add(total: Split, part: Split, ranks: int) -> Split:
    return Split(*(getattr(total, f.name) + getattr(part, f.name) / ranks for f in fields(Split)))


def _boundaries(
    config: TrainConfig, options: PlanOptions, device: Device, wiring: Wiring, chunks: Sequence[ChunkCosts]
) -> list[float]:
    layout, ranks = config.layout, config.layout.pipeline_parallel_size
    size = CostModel(config, options, device, wiring).boundary_bytes
    scattered = options.software.scatter_gather if options.scatter_gather is None else options.scatter_gather
    scattered = scattered and layout.tensor_parallel_size > 1 and not layout.sequence_parallel
    seconds = []
    for stage in range(len(chunks) - 1):
        link = wiring.boundary(stage % ranks, (stage + 1) % ranks)
        part = size / layout.tensor_parallel_size if scattered else size
        gathering = gather_seconds(size, layout.tensor_parallel_size, wiring.slices) if scattered else 0.0
        seconds.append(options.software.exchange_seconds + part / link.bytes_per_second + link.seconds + gathering)
    return seconds


class StepCosts:
    """What happens once an iteration."""

    def __init__(self, config: TrainConfig, options: PlanOptions, device: Device, wiring: Wiring) -> None:
        self._config, self._options, self._device, self._wiring = config, options, device, wiring
        layout = config.layout
        layers = stage_layers(config.model, layout.pipeline_parallel_size * options.virtual_stages)
        self._parameters = [
            sum(rank_parameters(config.model, layout, part) for part in layers[rank :: layout.pipeline_parallel_size])
            for rank in range(layout.pipeline_parallel_size)
        ]
        software = options.software
        self._reduction_width = options.reduction_width or software.reduction_width

    def replicas(self, rank: int, last_backward: float) -> float:
        """Reducing the gradients over the replicas, less what goes on behind the last micro-batch's backward pass."""
        layout = self._config.layout
        size = self._parameters[rank] * self._reduction_width
        collective = gather_seconds if self._options.zero >= 2 else reduce_seconds
        whole = collective(size, layout.data_parallel_size, self._wiring.replicas)
        overlapped = self._options.overlapped_replicas
        if overlapped is None:
            overlapped = self._options.software.overlapped_replicas and layout.pipeline_parallel_size == 1
        # What the first block adds can only be reduced when backward is through.
        return max(whole / self._config.model.num_layers, whole - last_backward) if overlapped else whole

    def gathered_weights(self, rank: int, micro_batches: int, computing: float) -> float:
        """ZeRO-3: weights gathered for forward and again for backward, gradients scattered, every micro-batch.

        What computing does not hide. Tensor by tensor, so that a ring over nodes is as fast as one network device.
        """
        width = 4 if self._config.training.precision == "fp32" else 2
        size = self._parameters[rank] * (2 * width + self._reduction_width)
        link = self._wiring.single_replicas
        return max(0.0, micro_batches * gather_seconds(size, self._config.layout.data_parallel_size, link) - computing)

    @property
    def tied(self) -> float:
        """Adding the tied embedding's two gradients."""
        layout, model = self._config.layout, self._config.model
        if layout.pipeline_parallel_size == 1:
            return 0.0
        rows = model.padded_vocab_size(layout.tensor_parallel_size) // layout.tensor_parallel_size
        link = self._wiring.boundary(0, layout.pipeline_parallel_size - 1)
        return reduce_seconds(rows * model.hidden_size * self._reduction_width, 2, link)

    def optimizer(self, rank: int) -> float:
        """The rank's share of the update, and gathering the weights that ZeRO divided."""
        layout, parameters = self._config.layout, self._parameters[rank]
        share = layout.data_parallel_size if self._options.zero >= 1 else 1
        updating = self._device.copying_seconds(self._options.software.optimizer_bytes * parameters / share)
        if share == 1:
            return updating
        width = 4 if self._config.training.precision == "fp32" else 2
        return updating + gather_seconds(parameters * width, share, self._wiring.replicas)
