"""A run on paper: the few lines that every run begins with, and all of `mtnlg train --dry-run`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from foundation.config import load_config
from foundation.console import error_console
from training.config import TrainConfig
from training.model.tensors import parameter_count
from training.planner.cluster import Cluster
from training.planner.flops import hardware_flops
from training.planner.memory import StageMemory, stage_memories
from training.planner.options import PlanOptions
from training.planner.planned import Planned
from training.schedule import batch_sizes, total_steps

_MIB, _GIB = 1 << 20, 1 << 30


def dry_run(path: Path, overrides: Sequence[str], cluster: Cluster) -> None:
    """Print the resolved configuration at `path` to standard output, and its plan for people. Starts nothing.

    Raises UserError when the layout cannot run the model, or does not fit the cluster.
    """
    config = load_config(TrainConfig, path, overrides)
    config.check()
    print_plan(config, cluster, error_console())
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")


def print_summary(config: TrainConfig, console: Console) -> None:
    """What will run, in a few lines."""
    _print_rows(_summary(config), console)


def print_plan(config: TrainConfig, cluster: Cluster, console: Console) -> None:
    """The whole plan: schedule, compute, and by stage the layers, memory, ranks and nodes.

    Raises UserError when the cluster has too few nodes.
    """
    num_nodes = cluster.nodes_of(config.layout)
    memories = stage_memories(config)
    placed = {**_placement(config, cluster, num_nodes), **_times(config, cluster)}
    _print_rows({**_summary(config), **_schedule(config), **placed}, console)
    console.print()
    console.print(_stage_table(config, cluster, memories))
    unit, _ = _unit(memories)
    console.print(
        f"Sizes in {unit} a rank. optim.: fp32 masters and Adam's moments, shared by the replicas; activ.: of (so "
        "many) micro-batches in flight; head: logits and the head's gradient. The device's context, communication "
        "buffers and the allocator's gaps come on top."
    )
    for warning in _warnings(config, cluster, memories):
        console.print(f"warning: {warning}", style="yellow")


def _summary(config: TrainConfig) -> dict[str, str]:
    model, training = config.model, config.training
    count = parameter_count(model, config.layout.tensor_parallel_size)
    return {
        "model": f"{model.num_layers} layers, hidden {model.hidden_size}, "
        f"{model.num_attention_heads} heads, {_readable(count)} parameters",
        "layout": f"{config.layout}, {config.layout.world_size} ranks",
        "batch": f"{training.global_batch_size} samples of {model.sequence_length} tokens, "
        f"{_micro_batches(config)} micro-batches of {training.micro_batch_size} a replica",
        "length": f"{total_steps(config):,} steps, {_readable(training.train_tokens)} tokens, {training.precision}",
        "run folder": str(config.out),
    }


def _schedule(config: TrainConfig) -> dict[str, str]:
    training, optimizer = config.training, config.optimizer
    sizes = list(batch_sizes(config))
    in_ramp = sum(size < training.global_batch_size for size in sizes)
    rows = {}
    if training.batch_ramp is not None:
        rows["batch ramp"] = (
            f"{in_ramp:,} steps from {training.batch_ramp.start} by {training.batch_ramp.increment}, then "
            f"{len(sizes) - in_ramp:,} of {training.global_batch_size}"
        )
    rows["learning rate"] = (
        f"to {optimizer.learning_rate:.2g} over {_readable(optimizer.warmup_tokens)} tokens, then a cosine to "
        f"{optimizer.min_learning_rate:.2g} at {_readable(optimizer.decay_tokens)}"
    )
    stages, micro_batches = config.layout.pipeline_parallel_size, _micro_batches(config)
    if stages > 1:
        # Narayanan et al. 2021, section 2.2.1: the idle share, in units of the time that is not idle.
        rows["bubble"] = f"{stages - 1} stages over {micro_batches} micro-batches: {(stages - 1) / micro_batches:.1%}"
    vocab = config.model.padded_vocab_size(config.layout.tensor_parallel_size)
    step, whole = (
        hardware_flops(config.model, vocab, samples, training.recomputation)
        for samples in (training.global_batch_size, sum(sizes))
    )
    rows["compute"] = f"{step:.3g} FLOPs a step, {whole:.3g} in all, recomputation {training.recomputation}"
    return rows


def _times(config: TrainConfig, cluster: Cluster) -> dict[str, str]:
    """The planned time of a full batch, where the cluster's figures are known; `mtnlg plan` says where it goes."""
    if not cluster.timed:
        return {}
    planned = Planned(config, PlanOptions(), cluster)
    iteration = planned.iteration
    days = planned.days(config.training.train_tokens)
    return {
        "step": f"{iteration.seconds:.3g} s planned, {iteration.tflops:.3g} TFLOP/s a GPU, bubble "
        f"{iteration.bubble:.1%}; the run {days:.3g} days"
    }


def _placement(config: TrainConfig, cluster: Cluster, num_nodes: int) -> dict[str, str]:
    layout = config.layout
    nodes = f"{num_nodes} of {cluster.gpus_per_node} GPUs"
    if num_nodes == 1:
        return {"nodes": f"{nodes}, for {layout.world_size} ranks"}
    widest = max(len(cluster.stage_nodes(layout, stage)) for stage in range(layout.pipeline_parallel_size))
    parts = []
    if layout.tensor_parallel_size > 1 and not cluster.split_tensor_groups(layout):
        parts.append("tensor groups inside a node")
    if layout.data_parallel_size > 1:
        parts.append("data groups " + (f"over at most {widest} neighbouring nodes" if widest > 1 else "inside a node"))
    if layout.pipeline_parallel_size > 1:
        parts.append("stages one after the other")
    return {"nodes": f"{nodes}: {', '.join(parts)}"}


def _stage_table(config: TrainConfig, cluster: Cluster, memories: list[StageMemory]) -> Table:
    # Short names and narrow gaps: 35 stages of 64 ranks fit a terminal of 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("stage", "blocks", "params", "weights", "grads", "optim.", "activ.", "head", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ranks", no_wrap=True)
    table.add_column("nodes", no_wrap=True)
    size = config.layout.tensor_parallel_size * config.layout.data_parallel_size
    _, unit_size = _unit(memories)
    for memory in memories:
        sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.head, memory.total)
        weights, gradients, optimizer, activations, head, total = (f"{value / unit_size:.1f}" for value in sizes)
        table.add_row(
            str(memory.stage),
            str(memory.blocks),
            _readable(memory.parameters),
            *(weights, gradients, optimizer, f"{activations} ({memory.in_flight})", head, total),
            _span(range(memory.stage * size, (memory.stage + 1) * size)),
            _span(cluster.stage_nodes(config.layout, memory.stage)),
        )
    return table


def _unit(memories: list[StageMemory]) -> tuple[str, int]:
    return ("GiB", _GIB) if max(memory.total for memory in memories) >= _GIB else ("MiB", _MIB)


def _warnings(config: TrainConfig, cluster: Cluster, memories: list[StageMemory]) -> Iterator[str]:
    split = cluster.split_tensor_groups(config.layout)
    if split:
        yield (
            f"{split} of the {len(config.layout.tensor_groups())} tensor groups of "
            f"{config.layout.tensor_parallel_size} ranks span nodes of {cluster.gpus_per_node} GPUs, and every layer "
            "then waits for the network; choose a layout.tensor_parallel_size that divides a node"
        )
    largest = max(memories, key=lambda memory: memory.total)
    if cluster.gpu_memory_gib is not None and largest.total > cluster.gpu_memory_gib * _GIB:
        yield (
            f"stage {largest.stage} takes {largest.total / _GIB:.1f} GiB a rank, and a GPU has "
            f"{cluster.gpu_memory_gib:g}; lower training.micro_batch_size, set training.recomputation=full, or slice "
            "the model further"
        )


def _micro_batches(config: TrainConfig) -> int:
    return config.training.global_batch_size // (config.training.micro_batch_size * config.layout.data_parallel_size)


def _print_rows(rows: dict[str, str], console: Console) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _span(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _readable(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
