"""What a search found, on the terminal and as JSON."""

from typing import Any

from rich.console import Console
from rich.table import Table

from training.planner.report import as_json
from training.planner.search import Candidate, Found, reasons

_SHOWN = 15


def print_found(found: Found, console: Console) -> None:
    """The fastest layouts, and the Pareto front of time against memory marked among them."""
    front = found.front()
    shown = [*found.candidates[:_SHOWN], *(c for c in front if c not in found.candidates[:_SHOWN])]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in (
        "",
        "t,p,d",
        "micro",
        "recompute",
        "seq",
        "parts",
        "seconds",
        "TFLOP/s",
        "MFU",
        "bubble",
        "GiB",
        "front",
    ):
        table.add_column(title, justify="left" if title in ("t,p,d", "recompute", "seq") else "right", no_wrap=True)
    for number, candidate in enumerate(found.candidates, 1):
        if candidate in shown:
            table.add_row(str(number), *_row(candidate), "*" if candidate in front else "")
    console.print(
        f"{len(found.candidates)} of {found.considered} layouts fit; the fastest, and (*) those that no other beats in "
        "time and memory. ~ is an estimate, not simulated."
    )
    console.print(table)


def found_json(found: Found) -> dict[str, Any]:
    """The same for programmes: every candidate, the first in full."""
    front = found.front()
    return {
        "considered": found.considered,
        "too_large": found.too_large,
        "best": as_json(found.best.planned, None),
        "reasons": reasons(found),
        "candidates": [
            {
                "layout": candidate.planned.config.layout.model_dump(),
                "micro_batch": candidate.request.micro_batch,
                "recompute": candidate.request.recompute,
                "virtual_stages": candidate.request.virtual_stages,
                "seconds": candidate.seconds,
                "simulated": candidate.simulated,
                "gib": candidate.planned.gib,
                "pareto": candidate in front,
            }
            for candidate in found.candidates
        ],
    }


def _row(candidate: Candidate) -> tuple[str, ...]:
    plan, request = candidate.planned, candidate.request
    layout = plan.config.layout
    choice = (
        f"{layout.tensor_parallel_size},{layout.pipeline_parallel_size},{layout.data_parallel_size}",
        str(request.micro_batch),
        request.recompute,
        "yes" if request.sequence_parallel else "",
        str(request.virtual_stages),
    )
    if not candidate.simulated:
        return *choice, f"~{candidate.estimate:.2f}", "", "", "", f"{plan.gib:.1f}"
    iteration = plan.iteration
    return (
        *choice,
        f"{iteration.seconds:.2f}",
        f"{iteration.tflops:.0f}",
        f"{iteration.model_utilisation:.1%}",
        f"{iteration.bubble:.1%}",
        f"{plan.gib:.1f}",
    )
