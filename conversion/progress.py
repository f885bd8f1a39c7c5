"""A bar on standard error that counts bytes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from foundation.console import error_console

# Called with a number of bytes and the name of what they are.
Advance = Callable[[int, str], None]


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Advance]:
    """A bar over `total` bytes that is gone when the block ends; none where nobody watches a terminal.

    Threads may call what it yields.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = error_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda size, name: bar.update(task, advance=size, description=name)
