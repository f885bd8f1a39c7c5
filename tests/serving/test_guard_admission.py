"""The queue's promises under random histories: bounds, order, fairness, and nobody lost."""

import asyncio
import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.guard.admission import Admission, Bounds, DrainRate
from serving.guard.refusal import Refused
from tests.serving.guard_stub import Clock

BOUNDS = Bounds(running_requests=3, running_tokens=100, queue_requests=6, queue_tokens=200)


@dataclass
class History:
    """Requests sent to one admission, and what became of them."""

    admission: Admission
    running: list[tuple[str, int]] = field(default_factory=list)
    waiting: dict[asyncio.Task[None], tuple[str, int, int]] = field(default_factory=dict)
    started: list[tuple[str, int]] = field(default_factory=list)
    sent: int = 0
    refused: int = 0
    cancelled: int = 0
    left: int = 0

    async def enter(self, owner: str, cost: int) -> None:
        number, self.sent = self.sent, self.sent + 1
        task = asyncio.create_task(self.admission.enter(owner, cost))
        self.waiting[task] = (owner, cost, number)
        await self.settle()

    async def leave(self, index: int) -> None:
        if self.running:
            _, cost = self.running.pop(index % len(self.running))
            self.admission.leave(cost)
            self.left += 1
        await self.settle()

    async def cancel(self, index: int, *, after_leave: bool) -> None:
        """Cancel one that waits; `after_leave`: in the same step in which it may just have been let in."""
        if after_leave and self.running:
            self.admission.leave(self.running.pop(0)[1])
            self.left += 1
        if self.waiting:
            list(self.waiting)[index % len(self.waiting)].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        for task in [task for task in self.waiting if task.done()]:
            owner, cost, number = self.waiting.pop(task)
            if task.cancelled():
                self.cancelled += 1
            elif task.exception() is not None:
                assert isinstance(task.exception(), Refused)
                self.refused += 1
            else:
                self.running.append((owner, cost))
                self.started.append((owner, number))
        self.check()

    def check(self) -> None:
        admission, bounds = self.admission, self.admission.bounds
        assert admission.running_requests == len(self.running) <= bounds.running_requests
        assert admission.running_tokens == sum(cost for _, cost in self.running) <= bounds.running_tokens
        assert admission.waiting_requests == len(self.waiting) <= bounds.queue_requests
        assert admission.waiting_tokens == sum(cost for _, cost, _ in self.waiting.values()) <= bounds.queue_tokens
        assert self.sent == self.refused + self.cancelled + self.left + len(self.running) + len(self.waiting)
        for owner in {owner for owner, _ in self.started}:
            mine = [number for name, number in self.started if name == owner]
            assert mine == sorted(mine)  # within an owner: first come, first served


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from("abc"), st.integers(1, 100)),
        st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(_STEPS)
def test_no_history_breaks_a_bound_or_loses_a_request(steps: list[tuple[str, object, object]]) -> None:
    async def play() -> None:
        history = History(Admission(BOUNDS, Clock()))
        for kind, first, second in steps:
            if kind == "enter":
                await history.enter(str(first), int(str(second)))
            elif kind == "leave":
                await history.leave(int(str(first)))
            else:
                await history.cancel(int(str(first)), after_leave=bool(second))
        while history.running or history.waiting:
            assert history.running, "somebody waits while nobody runs"
            await history.leave(0)
        assert history.admission._queues == {}

    asyncio.run(play())


def test_owners_take_turns_and_a_large_request_is_not_starved() -> None:
    async def play() -> list[tuple[str, int]]:
        history = History(Admission(Bounds(1, 100, 20, 2000), Clock()))
        for owner, cost in [("a", 10), ("a", 10), ("a", 100), ("a", 10), ("b", 10), ("c", 10), ("b", 10)]:
            await history.enter(owner, cost)
        while history.running:
            await history.leave(0)
        return history.started

    assert asyncio.run(play()) == [("a", 0), ("a", 1), ("b", 4), ("c", 5), ("a", 2), ("b", 6), ("a", 3)]


def test_requests_that_leave_the_head_make_way() -> None:
    async def play() -> tuple[int, int]:
        history = History(Admission(BOUNDS, Clock()))
        await history.enter("a", 60)
        await history.enter("a", 90)
        await history.enter("a", 40)
        before = len(history.running)
        await history.cancel(0, after_leave=False)
        return before, len(history.running)

    assert asyncio.run(play()) == (1, 2)


def test_one_key_fills_its_share_of_the_queue_only() -> None:
    async def play() -> str:
        admission = Admission(Bounds(1, 100, 6, 1000), Clock())
        await admission.enter("a", 10, 0.5)
        tasks = [asyncio.create_task(admission.enter("a", 10, 0.5)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="its share of the queue") as caught:
            admission.check("a", 10, 0.5)
        admission.check("b", 10, 0.5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert admission.waiting_requests == 0
        return caught.value.code

    assert asyncio.run(play()) == "overloaded"


def test_retry_after_is_when_there_is_room() -> None:
    """Ten tokens a second leave; the newcomer has to wait until as many are gone as are in its way."""

    async def play() -> tuple[float | None, float | None, float | None]:
        clock = Clock()
        admission = Admission(Bounds(1, 100, 2, 200), clock)
        await admission.enter("a", 100)
        tasks = [asyncio.create_task(admission.enter("a", 100)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused) as unmeasured:
            admission.check("a", 50)
        clock.now += 10
        admission.leave(100)
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(admission.enter("a", 80)))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as measured:
            admission.check("a", 50)
        rate = admission.rate()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return unmeasured.value.retry_seconds, rate, measured.value.retry_seconds

    unmeasured, rate, measured = asyncio.run(play())
    assert unmeasured == 5.0
    assert rate == pytest.approx(10.0)
    assert measured == pytest.approx((180 + 50) / 3 / 10)


# Free room for tokens shortens no wait while as many requests run as may.
@pytest.mark.parametrize("running_tokens", [100, 1000])
def test_request_that_would_wait_too_long_is_refused_at_once(running_tokens: int) -> None:
    async def play() -> Refused:
        clock = Clock()
        admission = Admission(Bounds(1, running_tokens, 50, 5000, queue_seconds=20), clock)
        await admission.enter("a", 100)
        clock.now += 10
        admission.leave(100)
        await admission.enter("a", 100)
        tasks = [asyncio.create_task(admission.enter("a", 100)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="30 s before this request could start") as caught:
            admission.check("a", 100)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return caught.value

    assert asyncio.run(play()).retry_seconds == pytest.approx(10.0)


def test_rate_counts_busy_time_only() -> None:
    clock = Clock()
    rate = DrainRate(clock)
    assert rate.per_second() is None
    for _ in range(100):
        clock.now += 2
        rate.pass_time(busy=True)
        rate.add(50)
        clock.now += 7
        rate.pass_time(busy=False)
    measured = rate.per_second()
    assert measured is not None
    assert measured == pytest.approx(25, rel=0.1)


def test_thousands_of_random_steps_end_empty() -> None:
    async def play() -> History:
        chance = random.Random(7)
        history = History(Admission(BOUNDS, Clock()))
        for _ in range(2000):
            step = chance.random()
            if step < 0.5:
                await history.enter(chance.choice("abcd"), chance.randint(1, 100))
            elif step < 0.85:
                await history.leave(chance.randrange(9))
            else:
                await history.cancel(chance.randrange(9), after_leave=chance.random() < 0.5)
        while history.running:
            await history.leave(0)
        return history

    history = asyncio.run(play())
    assert history.waiting == {}
    assert min(history.refused, history.cancelled, history.left) > 50
    assert history.admission.running_tokens == history.admission.waiting_tokens == 0
    assert math.isinf(history.admission.bounds.queue_seconds)
