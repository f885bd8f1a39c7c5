"""The verb `load`: connect, send, show how far it is, and report."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from foundation.console import error_console, table_console
from serving.load.answer import Outcome
from serving.load.calls import Call
from serving.load.client import connected
from serving.load.report import print_report, write_run
from serving.load.run import Asking, Run, run_event_loop, send

_TERMINAL_SECONDS = 0.2
_LINE_SECONDS = 10.0


@dataclass(frozen=True)
class Load:
    """What to send to whom. `concurrency` None sends each call at its time; `timeout` is seconds for an answer.

    `settings` go into the file at `out`, as what was asked.
    """

    url: str
    calls: Sequence[Call]
    concurrency: int | None = None
    model: str | None = None
    api_key: str | None = None
    seed: int = 0
    ignore_eos: bool = False
    retries: int = 0
    timeout: float = 600.0
    out: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def load(plan: Load) -> Run:
    """Send the load, print the table, write the file. Ctrl-C ends it early, with what has ended by then.

    Raises UserError when there is no server, no such model, or the key is refused.
    """
    run = run_event_loop(send_load(plan))
    print_report(run, table_console())
    if plan.out is not None:
        write_run(plan.out, run, {"url": plan.url, "model": plan.model, "seed": plan.seed, **plan.settings})
        print(f"mtnlg: every request is in {plan.out}", file=sys.stderr)
    return run


async def send_load(plan: Load, *, shown: bool = True) -> Run:
    """Send the load and return what became of it."""
    run = Run(len(plan.calls))
    async with connected(plan.url, plan.api_key, plan.timeout) as client:
        asking = Asking(await client.served_model(plan.model), plan.seed, plan.ignore_eos, plan.retries)
        async with _progress(run) if shown else contextlib.nullcontext():
            await send(client, plan.calls, asking, run, plan.concurrency)
    return run


@contextlib.asynccontextmanager
async def _progress(run: Run) -> AsyncIterator[None]:
    """Show on standard error how far it is: a bar on a terminal, else a line now and then."""
    console = error_console()
    show = asyncio.create_task(_bar(run, console) if console.is_terminal else _log(run, console))
    try:
        yield
    finally:
        show.cancel()
        await asyncio.wait({show})


async def _bar(run: Run, console: Console) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task = progress.add_task("", total=run.total)
        try:
            while True:
                progress.update(task, completed=len(run.answers), description=_state(run), refresh=True)
                await asyncio.sleep(_TERMINAL_SECONDS)
        finally:
            progress.update(task, completed=len(run.answers), description=_state(run), refresh=True)


async def _log(run: Run, console: Console) -> None:
    while True:
        await asyncio.sleep(_LINE_SECONDS)
        console.print(f"mtnlg: {len(run.answers)} of {run.total} ended; {_state(run)}")


def _state(run: Run) -> str:
    ended = ", ".join(f"{run.outcomes[outcome]} {outcome.value}" for outcome in Outcome if run.outcomes[outcome])
    return ", ".join(part for part in (f"{run.under_way} under way", ended) if part)
