"""What a build shows while it works: a bar a stage with rate and time left; lines where there is no terminal."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

_LINE_SECONDS = 30.0
_BYTES = "bytes"


class BuildDisplay:
    """Progress on a console (standard error, as a rule)."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, line: str) -> None:
        """A line that stays."""
        self.console.print(line, markup=False)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str, int, int], None]]:
        """A stage's `report`: what (`... bytes` are shown as such), done, of how many."""
        if not self.console.is_terminal:
            yield _Lines(name, self.console)
            return
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            _Amount(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            speed_estimate_period=120.0,
        )
        with progress:
            yield _Bars(name, progress)


class _Bars:
    """One bar, anew for each kind of work."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._name = name
        self._progress = progress
        self._what = ""
        self._task = progress.add_task(name, total=None, what="")

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            # Its first report says what an earlier run did, which must not count as speed.
            self._what = what
            self._progress.reset(
                self._task, total=total, completed=done, description=f"{self._name}: {what}", what=what
            )
            self._progress.tasks[0].fields["begun"] = done
            return
        self._progress.update(self._task, completed=done, total=total)


class _Amount(ProgressColumn):
    """Done of how many, and the rate."""

    def render(self, task: Task) -> Text:
        """The column's text."""
        if task.total is None:
            return Text("")
        what = str(task.fields["what"])
        done = task.completed - int(task.fields.get("begun", 0))
        text = f"{_amount(what, task.completed)} of {_amount(what, task.total)}"
        if task.elapsed and done:
            text += f", {_amount(what, done / task.elapsed)}/s"
        return Text(text)


class _Lines:
    """A line every half minute."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._console = console
        self._what = ""
        self._started = self._said = time.monotonic()
        self._begun = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._begun = what, now, done
        if now - self._said < _LINE_SECONDS:
            return
        self._said = now
        rate = (done - self._begun) / max(now - self._started, 1e-3)
        left = f", {duration((total - done) / rate)} left" if rate > 0 else ""
        unit = "" if what.endswith(_BYTES) else f" {what}"
        line = f"{self._name}: {_amount(what, done)} of {_amount(what, total)}{unit}, {_amount(what, rate)}/s{left}"
        self._console.print(line, markup=False)


def _amount(what: str, number: float) -> str:
    if what.endswith(_BYTES):
        return decimal(int(number))
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def duration(seconds: float) -> str:
    """Seconds in words: 4.2 s, 3 min 20 s, 5 h 12 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
