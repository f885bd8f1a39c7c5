"""A run's numbers: metrics.jsonl, the same as TensorBoard's events, and losses as a picture."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from foundation.files import write_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

METRICS_FILE = "metrics.jsonl"
CURVE_FILE = "loss.png"
TENSORBOARD_FOLDER = "tensorboard"
_TENSORBOARD_FLUSH_SECONDS = 10


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a torn last line is dropped."""
    path = run / METRICS_FILE
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def perplexity(loss: float) -> float:
    """e to a mean loss in nats a token; infinite where that is more than a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class MetricsFile:
    """Appends to metrics.jsonl, a line an event, after dropping what lies beyond the resumed step.

    Resumed step 0 is a run from the start, which keeps nothing. Each value becomes a scalar for TensorBoard too.
    """

    def __init__(self, run: Path, resumed_step: int) -> None:
        self._run = run
        self._handle, self._events = self._open_after(resumed_step)

    def rewind(self, step: int) -> None:
        """Drop what lies beyond `step`: the run was rolled back to it."""
        self._close()
        self._handle, self._events = self._open_after(step)

    def write(self, *, step: int, **values: float) -> None:
        """Append one line, at once visible to readers."""
        self._handle.write(json.dumps({"step": step, **values}) + "\n")
        self._handle.flush()
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _open_after(self, step: int) -> tuple[TextIO, "SummaryWriter"]:
        from torch.utils.tensorboard import SummaryWriter

        kept = [line for line in read_metrics(self._run) if line["step"] <= step] if step else []
        write_text(self._run / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept))
        # TensorBoard's readers drop what earlier files hold from this step on.
        beyond = step + 1 if step else 0
        events = SummaryWriter(
            str(self._run / TENSORBOARD_FOLDER), purge_step=beyond, flush_secs=_TENSORBOARD_FLUSH_SECONDS
        )
        return (self._run / METRICS_FILE).open("a", encoding="utf-8"), events

    def _close(self) -> None:
        self._events.close()
        os.fsync(self._handle.fileno())
        self._handle.close()


def draw_curve(run: Path) -> Path:
    """Draw a run's training and validation loss against tokens as its `loss.png`."""
    path = run / CURVE_FILE
    draw_losses({"": run}, path)
    return path


def draw_losses(runs: Mapping[str, Path], path: Path) -> None:
    """Draw the losses of runs, by the name to show, over each other; validation losses are dotted lines.

    The suffix of `path` chooses the format.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, run) in enumerate(runs.items()):
        metrics = read_metrics(run)
        styles: dict[str, dict[str, Any]] = {
            "loss": {"linewidth": 1.0},
            "validation_loss": {"marker": "o", "markersize": 4, "linestyle": ":"},
        }
        for key, style in styles.items():
            points = [(line["tokens"], line[key]) for line in metrics if key in line]
            # One run has a colour a curve, several a colour a run.
            colour = f"C{number}" if len(runs) > 1 else None
            if points:
                label = f"{name} {key.replace('_', ' ')}".strip()
                axes.plot(*zip(*points, strict=True), label=label, color=colour, **style)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format=path.suffix.removeprefix("."))
    temporary.replace(path)
