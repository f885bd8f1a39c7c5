"""A time limit that costs nothing where there is nothing to wait for."""

import asyncio
import types
from collections.abc import Awaitable, Generator
from typing import Any


async def within(seconds: float, action: Awaitable[None]) -> None:
    """Await `action`, for so long at most; raises TimeoutError.

    It is run up to its first wait before a timer is set: a token that is sent has nearly always left by then, and one
    timer a token would cost as much as sending it.
    """
    steps = action.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return
    async with asyncio.timeout(seconds):
        await _rest(steps, awaited)


@types.coroutine
def _rest(steps: Generator[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """What is left of an action that waits for `awaited`."""
    try:
        yield awaited
    except BaseException as error:
        try:
            yield steps.throw(error)
        except StopIteration:
            return
    yield from steps
