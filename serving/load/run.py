"""Sends calls as they are planned and collects what becomes of them."""

import asyncio
import collections
import itertools
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from uvicorn.loops.auto import auto_loop_factory

from serving.load.answer import Answer, Outcome
from serving.load.calls import Call
from serving.load.client import LoadClient

_LONGEST_RETRY_AFTER = 600.0

Result = TypeVar("Result")


@dataclass(frozen=True)
class Asking:
    """What is the same for every request of a run. `retries` is how often one is sent again after its Retry-After."""

    model: str
    seed: int = 0
    ignore_eos: bool = False
    retries: int = 0


@dataclass
class Run:
    """What has ended so far. `started` is seconds since the epoch; `unfinished` were cut off by Ctrl-C."""

    total: int
    started: float = field(default_factory=time.time)
    answers: list[Answer] = field(default_factory=list)
    outcomes: collections.Counter[Outcome] = field(default_factory=collections.Counter)
    under_way: int = 0
    unfinished: int = 0
    interrupted: bool = False
    seconds: float = 0.0


async def send(client: LoadClient, calls: Sequence[Call], asking: Asking, run: Run, concurrency: int | None) -> None:
    """Send `calls` and fill `run`: `concurrency` at a time, or where that is None each at its own time.

    Cancelled, as by Ctrl-C, it drops what is under way and returns with what has ended.
    """
    sender = _Sender(client, asking, run)
    try:
        async with asyncio.TaskGroup() as group:
            if concurrency is None:
                await sender.send_on_time(calls, group)
            else:
                shared = iter(calls)
                for _ in range(concurrency):
                    group.create_task(sender.send_in_turn(shared))
    except asyncio.CancelledError:
        run.interrupted = True
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        task.uncancel()
    run.seconds = sender.elapsed()


def run_event_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on uvloop where that is installed: the client is to leave the cores to the server."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(work)


class _Sender:
    """Sends the calls of one run."""

    def __init__(self, client: LoadClient, asking: Asking, run: Run) -> None:
        self._client = client
        self._asking = asking
        self._run = run
        self._began = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    async def send_in_turn(self, calls: Iterator[Call]) -> None:
        """Take the next call whenever one has ended."""
        for call in calls:
            await self._send(call)

    async def send_on_time(self, calls: Sequence[Call], group: asyncio.TaskGroup) -> None:
        """Start each call at its time."""
        for call in calls:
            await asyncio.sleep(max(0.0, (call.at or 0.0) - self.elapsed()))
            group.create_task(self._send(call))

    async def _send(self, call: Call) -> None:
        asking, run = self._asking, self._run
        body = call.body(asking.model, asking.seed, ignore_eos=asking.ignore_eos)
        run.under_way += 1
        try:
            answer = await self._ask(call, body)
        except asyncio.CancelledError:
            run.unfinished += 1
            raise
        finally:
            run.under_way -= 1
        run.answers.append(answer)
        run.outcomes[answer.outcome] += 1

    async def _ask(self, call: Call, body: bytes) -> Answer:
        """Ask, and ask again after each Retry-After as often as that is wanted."""
        waits: list[float] = []
        for attempt in itertools.count():
            sent = self.elapsed()
            answer = Answer(call.number, sent, choices=call.shape.choices, retry_afters=waits)
            if call.at is not None and attempt == 0:
                answer.late = max(0.0, sent - call.at)
            await self._client.ask(call.path, body, answer, stream=call.shape.stream)
            wait = answer.retry_after
            if answer.outcome is not Outcome.refused or wait is None or attempt >= self._asking.retries:
                break
            if wait > _LONGEST_RETRY_AFTER:
                break
            waits = [*waits, wait]
            await asyncio.sleep(wait)
        return answer
