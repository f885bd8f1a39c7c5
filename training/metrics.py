"""What the user watches: a progress bar, metrics.jsonl, and the loss curve as a picture."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foundation.files import write_text

METRICS_FILE = "metrics.jsonl"
CURVE_FILE = "loss.png"
_LINES_WITHOUT_TERMINAL = 20


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a torn last line is dropped."""
    path = run / METRICS_FILE
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


class MetricsFile:
    """Appends to metrics.jsonl, a line an event, after dropping what lies beyond the resumed step."""

    def __init__(self, run: Path, resumed_step: int) -> None:
        self._run = run
        self._handle = self._open_after(resumed_step)

    def rewind(self, step: int) -> None:
        """Drop what lies beyond `step`: the run was rolled back to it."""
        self._handle.close()
        self._handle = self._open_after(step)

    def _open_after(self, step: int) -> TextIO:
        kept = [line for line in read_metrics(self._run) if line["step"] <= step]
        write_text(self._run / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept))
        return (self._run / METRICS_FILE).open("a", encoding="utf-8")

    def write(self, **values: float) -> None:
        """Append one line, at once visible to readers."""
        self._handle.write(json.dumps(values) + "\n")
        self._handle.flush()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._handle.fileno())
        self._handle.close()


def draw_curve(run: Path) -> Path:
    """Draw training and validation loss against tokens from metrics.jsonl as `loss.png`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    metrics = read_metrics(run)
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for key, style in (("loss", {"linewidth": 1.0}), ("validation_loss", {"marker": "o", "markersize": 4})):
        points = [(line["tokens"], line[key]) for line in metrics if key in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=key.replace("_", " "), **style)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    path = run / CURVE_FILE
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)
    return path


class StepReporter:
    """Shows each step: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, progress: Progress | None, total: int, done: int) -> None:
        self._console = console
        self._progress = progress
        self._total = total
        self._every = max(1, total // _LINES_WITHOUT_TERMINAL)
        self._task = progress.add_task("training", total=total, completed=done, text="") if progress else None

    def step(self, step: int, *, loss: float, learning_rate: float, tokens_per_second: float) -> None:
        """Report one finished step."""
        text = f"loss {loss:.3f}  lr {learning_rate:.2e}  {tokens_per_second:,.0f} tokens/s"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, text=text)
        elif step % self._every == 0 or step == self._total:
            self._console.print(f"step {step}/{self._total}  {text}")

    def note(self, message: str) -> None:
        """A line that stays."""
        (self._progress.console if self._progress else self._console).print(message)


@contextmanager
def step_reporter(console: Console, total: int, done: int) -> Iterator[StepReporter]:
    """A reporter for `total` steps of which `done` are behind."""
    if not console.is_terminal:
        yield StepReporter(console, None, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield StepReporter(console, progress, total, done)
