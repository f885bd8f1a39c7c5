"""Pictures of plans: a pipeline's timeline, and what a sweep changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.planner.iteration import Iteration
from training.planner.planned import Planned

_COLUMNS, _FINER = 2400, 4
# Idle, forward, recomputation, backward, transfer, reduction, optimizer.
_COLOURS = ("#ffffff", "#4c78a8", "#f2b25c", "#e45756", "#b0b0b0", "#54a24b", "#9467bd")
_NAMES = ("idle", "forward", "recomputation", "backward", "transfer", "data-parallel reduction", "optimizer")


def draw_timeline(iteration: Iteration, path: Path, title: str) -> None:
    """Draw the iteration as `path`: a row a rank of the pipeline, time to the right. The suffix chooses the format."""
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    kinds = _raster(iteration)
    ranks = len(kinds)
    # Finer than the picture, and then the mean: what is shorter than a pixel shows as a tint.
    colours = np.array([to_rgb(colour) for colour in _COLOURS])
    pixels = colours[kinds].reshape(ranks, _COLUMNS, _FINER, 3).mean(2)
    figure = Figure(figsize=(12, min(8.0, 1.8 + 0.16 * ranks)), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.imshow(
        pixels,
        aspect="auto",
        interpolation="nearest",
        extent=(0.0, iteration.seconds, ranks - 0.5, -0.5),
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("stage")
    axes.set_title(title)
    used = [kind for kind in range(1, len(_COLOURS)) if (kinds == kind).any()]
    axes.legend(
        handles=[Patch(color=_COLOURS[kind], label=_NAMES[kind]) for kind in used],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16 if ranks < 12 else -0.1),
        ncols=len(used),
        frameon=False,
    )
    _save(figure, path)


def draw_sweep(key: str, plans: Sequence[tuple[str, Planned]], path: Path) -> None:
    """Draw iteration time, bubble and MFU by the values of `key` as `path`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(11, 3.4), dpi=120, layout="constrained")
    values = [value for value, _ in plans]
    series = {
        "iteration, seconds": [plan.iteration.seconds for _, plan in plans],
        "bubble, share of the iteration": [plan.iteration.bubble for _, plan in plans],
        "model FLOPs utilisation": [plan.iteration.model_utilisation for _, plan in plans],
    }
    for number, (axes, (label, heights)) in enumerate(zip(figure.subplots(1, 3), series.items(), strict=True)):
        axes.plot(values, heights, marker="o", color=f"C{number}")
        axes.set_title(label)
        axes.set_xlabel(key)
        axes.set_ylim(0, 1.1 * max(heights))
        axes.grid(alpha=0.3)
        if number:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _save(figure, path)


def _raster(iteration: Iteration) -> Any:
    """The kind of work [ranks, columns] in each portion of the time."""
    import numpy as np

    ranks = len(iteration.events)
    columns = _COLUMNS * _FINER
    pixels = np.zeros((ranks, columns), dtype=np.uint8)
    scale = columns / iteration.seconds

    def paint(rank: int, start: float, end: float, kind: int) -> None:
        pixels[rank, round(start * scale) : round(end * scale)] = kind

    finished = [
        events[-1].sent + reducing for events, reducing in zip(iteration.events, iteration.reducing, strict=True)
    ]
    for rank, events in enumerate(iteration.events):
        for work, start, end, sent in events:
            again = 0.0 if work.forward else iteration.recomputing[work.part * ranks + rank]
            paint(rank, start, start + again, 2)
            paint(rank, start + again, end, 1 if work.forward else 3)
            paint(rank, end, sent, 4)
        paint(rank, events[-1].sent, finished[rank], 5)
        paint(rank, max(finished), iteration.seconds, 6)
    return pixels


def _save(figure: Any, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format=path.suffix.removeprefix("."))
    temporary.replace(path)
