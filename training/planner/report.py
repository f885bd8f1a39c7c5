"""A plan on the terminal: summary, the split of the iteration, memory by stage, comparisons."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from training.model.tensors import parameter_count
from training.planner.iteration import Split, micro_batches
from training.planner.memory import StageMemory
from training.planner.planned import Planned

_GIB = 1 << 30
LABELS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "slices": "tensor-parallel collectives",
    "accumulate": "adding up gradients",
    "transfers": "transfers between stages",
    "bubble": "bubble",
    "replicas": "data-parallel reduction",
    "optimizer": "optimizer",
}


def print_planned(planned: Planned, tokens: int | None, console: Console) -> None:
    """Everything of one plan."""
    rows = summary(planned, tokens)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    console.print()
    console.print(_split_table([planned], ["seconds"]))
    console.print()
    console.print(_memory_table(planned))
    for warning in warnings(planned):
        console.print(f"warning: {warning}", style="yellow")


def print_comparison(named: dict[str, Planned], console: Console) -> None:
    """The split of several plans beside each other, with what each comes to."""
    table = _split_table(list(named.values()), list(named))
    lines: dict[str, Callable[[Planned], str]] = {
        "TFLOP/s a GPU": lambda plan: f"{plan.iteration.tflops:.1f}",
        "MFU": lambda plan: f"{plan.iteration.model_utilisation:.1%}",
        "bubble": lambda plan: f"{plan.iteration.bubble:.1%}",
        "GiB a GPU": lambda plan: f"{plan.gib:.1f}{'' if plan.fits else ' (too much)'}",
        "GPUs": lambda plan: str(plan.devices),
    }
    table.add_section()
    for title, value in lines.items():
        table.add_row(title, *(cell for plan in named.values() for cell in (value(plan), "")))
    console.print(table)


def summary(planned: Planned, tokens: int | None) -> dict[str, str]:
    """The plan in a few lines, by title."""
    config, iteration, cluster = planned.config, planned.iteration, planned.cluster
    model, training = config.model, config.training
    count = parameter_count(model, config.layout.tensor_parallel_size)
    parts = f", {planned.options.virtual_stages} parts a rank" if planned.options.virtual_stages > 1 else ""
    device = iteration.device
    rows = {
        "model": f"{model.num_layers} layers, hidden {model.hidden_size}, {model.num_attention_heads} heads, "
        f"{count / 1e9:.4g} B parameters",
        "layout": f"{config.layout}{parts}; {planned.devices} x {device.name}, {cluster.nodes_of(config.layout)} nodes",
        "batch": f"{training.global_batch_size} samples of {model.sequence_length} tokens, {micro_batches(config)} "
        f"micro-batches of {training.micro_batch_size} a replica, recomputation {training.recomputation}",
        "software": f"{planned.options.engine.value}: {planned.options.software.title}, ZeRO {planned.options.zero}",
        "iteration": f"{iteration.seconds:.4g} s, {iteration.tokens_per_second:,.0f} tokens/s",
        "speed": f"{iteration.tflops:.1f} TFLOP/s a GPU; HFU {iteration.hardware_utilisation:.1%}, "
        f"MFU {iteration.model_utilisation:.1%}",
        "bubble": f"{iteration.bubble:.1%} of the iteration; of equal stages {iteration.closed_bubble:.1%} of the rest",
        "memory": _memory_line(planned),
    }
    if tokens is not None:
        hours = planned.device_hours(tokens)
        price = cluster.dollars_per_gpu_hour
        cost = "" if price is None else f", {hours * price.value:,.0f} dollars"
        rows["whole run"] = (
            f"{tokens / 1e9:,.4g} B tokens: {planned.days(tokens):,.1f} days, {hours:,.0f} GPU-hours{cost}"
        )
    return rows


def as_json(planned: Planned, tokens: int | None) -> dict[str, Any]:
    """The plan for programmes; seconds and bytes."""
    iteration, layout = planned.iteration, planned.config.layout
    document: dict[str, Any] = {
        "layout": layout.model_dump(),
        "options": planned.options.model_dump(mode="json"),
        "training": planned.config.training.model_dump(mode="json"),
        "parameters": parameter_count(planned.config.model, layout.tensor_parallel_size),
        "devices": planned.devices,
        "iteration_seconds": iteration.seconds,
        "split_seconds": {field.name: getattr(iteration.split, field.name) for field in fields(Split)},
        "bubble_share": iteration.bubble,
        "closed_bubble": iteration.closed_bubble,
        "tflops_per_device": iteration.tflops,
        "hardware_flops_utilisation": iteration.hardware_utilisation,
        "model_flops_utilisation": iteration.model_utilisation,
        "tokens_per_second": iteration.tokens_per_second,
        "memory_bytes_by_stage": [_stage_json(memory) for memory in planned.memories],
        "gib": planned.gib,
        "fits": planned.fits,
    }
    if tokens is not None:
        document["tokens"], document["days"] = tokens, planned.days(tokens)
        document["gpu_hours"] = planned.device_hours(tokens)
    return document


def warnings(planned: Planned) -> list[str]:
    """What is unwise about a plan."""
    found = []
    if not planned.fits:
        found.append(
            f"stage {planned.fullest.stage} takes {planned.gib:.1f} GiB with the {planned.cluster.reserved_gib:g} "
            f"reserved, and a device has {planned.cluster.gpu_memory_gib:g}"
        )
    split = planned.cluster.split_tensor_groups(planned.config.layout)
    if split:
        found.append(
            f"{split} tensor groups span nodes of {planned.cluster.gpus_per_node} GPUs, and every layer waits for the "
            "network"
        )
    return found


def _stage_json(memory: StageMemory) -> dict[str, float]:
    names = ("weights", "gradients", "optimizer", "activations", "head", "total")
    return {"stage": memory.stage, "parameters": memory.parameters, **{name: getattr(memory, name) for name in names}}


def _memory_line(planned: Planned) -> str:
    fullest, limit = planned.fullest, planned.cluster.gpu_memory_gib
    of = "" if limit is None else f" of {limit:g}"
    return (
        f"{planned.gib:.1f} GiB{of} at stage {fullest.stage}, {planned.cluster.reserved_gib:g} of them reserved"
        f"{'' if planned.fits else ': does not fit'}"
    )


def _split_table(plans: Sequence[Planned], titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("iteration")
    for title in titles:
        table.add_column(title, justify="right")
        table.add_column("share", justify="right")
    for name, label in LABELS.items():
        cells = []
        for plan in plans:
            seconds = getattr(plan.iteration.split, name)
            cells += [f"{seconds:.4g}" if seconds > 1e-9 else "-", f"{seconds / plan.iteration.seconds:.1%}"]
        table.add_row(label, *cells)
    table.add_row("all", *(cell for plan in plans for cell in (f"{plan.iteration.seconds:.4g}", "")))
    return table


def _memory_table(planned: Planned) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("GiB a rank")
    for name in ("params", "weights", "grads", "optim.", "activ.", "head", "total"):
        table.add_column(name, justify="right")
    for first, last, memory in _alike(planned.memories):
        sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.head, memory.total)
        stages = f"stage {first}" if first == last else f"stages {first}-{last}"
        table.add_row(stages, f"{memory.parameters / 1e9:.3g} B", *(f"{size / _GIB:.2f}" for size in sizes))
    return table


def _alike(memories: Sequence[StageMemory]) -> list[tuple[int, int, StageMemory]]:
    """Stages by what they hold; of a run of equal ones the fullest. At most the first, the last and between."""
    runs: list[tuple[int, int, StageMemory]] = []
    for memory in memories:
        if runs and runs[-1][2].parameters == memory.parameters and runs[-1][2].blocks == memory.blocks:
            first, _, fullest = runs[-1]
            runs[-1] = (first, memory.stage, max(fullest, memory, key=lambda held: held.total))
        else:
            runs.append((memory.stage, memory.stage, memory))
    return runs
