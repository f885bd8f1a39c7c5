"""Progress on the terminal: a bar where there is one, a line now and then elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from training.config import TrainConfig
from training.schedule import total_steps

_LINES_WITHOUT_TERMINAL = 20
_SPEED_MEMORY = 0.9


class StepReporter:
    """Shows each step: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, progress: Progress | None, config: TrainConfig, done: int) -> None:
        self._console = console
        self._progress = progress
        self._total = total_steps(config)
        self._total_tokens = config.training.train_tokens
        self._every = max(1, self._total // _LINES_WITHOUT_TERMINAL)
        self._task = progress.add_task("training", total=self._total, completed=done, text="") if progress else None
        self._tokens_per_second: float | None = None

    def step(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Report one finished step, `tokens` into the run; `values` by the names of metrics.jsonl."""
        remaining = self._remaining(tokens, values["tokens_per_second"])
        text = f"{describe(values)}  ETA {remaining}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, text=text)
        elif step % self._every == 0 or step == self._total:
            self._console.print(f"step {step}/{self._total}  {text}")

    def note(self, message: str) -> None:
        """A line that stays."""
        (self._progress.console if self._progress else self._console).print(message)

    def _remaining(self, tokens: int, tokens_per_second: float) -> timedelta:
        # By tokens, not by steps: those of a growing batch take longer and longer.
        before = tokens_per_second if self._tokens_per_second is None else self._tokens_per_second
        self._tokens_per_second = _SPEED_MEMORY * before + (1 - _SPEED_MEMORY) * tokens_per_second
        return timedelta(seconds=round(max(0, self._total_tokens - tokens) / self._tokens_per_second))


def describe(values: Mapping[str, float]) -> str:
    """A step in a line; the utilisation only where it was computed."""
    parts = [
        f"loss {values['loss']:.3f}",
        f"lr {values['learning_rate']:.2e}",
        f"batch {values['batch_size']}",
        f"{values['tokens_per_second']:,.0f} tokens/s",
        f"{values['tflops_per_device']:.3g} TFLOP/s a device",
    ]
    if "model_flops_utilisation" in values:
        parts.append(f"MFU {values['model_flops_utilisation']:.1%}")
    return "  ".join(parts)


@contextmanager
def step_reporter(console: Console, config: TrainConfig, done: int) -> Iterator[StepReporter]:
    """A reporter for a run's steps, of which `done` are behind."""
    if not console.is_terminal:
        yield StepReporter(console, None, config, done)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", table_column=Column()),  # wraps where the terminal is narrow
    )
    with Progress(*columns, console=console) as progress:
        yield StepReporter(console, progress, config, done)
