"""A time limit that is set only when something waits."""

import asyncio

import pytest

from serving.guard.promptly import within


def test_what_need_not_wait_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    async def act() -> None:
        done.append(1)

    async def ask() -> None:
        with monkeypatch.context() as patch:
            patch.delattr(asyncio, "timeout")
            await within(1.0, act())

    asyncio.run(ask())
    assert done == [1]


def test_what_waits_goes_on_to_its_end() -> None:
    seen = []

    async def act() -> None:
        for number in range(3):
            await asyncio.sleep(0)
            seen.append(number)
        await asyncio.wait_for(asyncio.sleep(0.001), 5.0)
        seen.append(3)

    asyncio.run(within(30.0, act()))
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("waits", [0, 2])
def test_an_error_comes_out(waits: int) -> None:
    async def act() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        asyncio.run(within(30.0, act()))


def test_what_waits_too_long_is_cancelled_where_it_waits() -> None:
    ended = []

    async def act() -> None:
        await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(TimeoutError):
        asyncio.run(within(0.01, act()))
    assert ended == [True]


@pytest.mark.parametrize("waits_again", [False, True])
def test_an_action_may_take_its_cancellation_as_its_end(waits_again: bool) -> None:
    ended = []

    async def act() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if waits_again:
                await asyncio.sleep(0)
            ended.append(True)

    asyncio.run(within(0.01, act()))
    assert ended == [True]


def test_a_task_that_is_cancelled_from_outside_ends() -> None:
    async def ask() -> None:
        task = asyncio.create_task(within(30.0, asyncio.Event().wait()))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
