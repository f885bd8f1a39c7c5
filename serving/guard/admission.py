"""Who may run now, who waits, and who is told to come back: by tokens, fair between owners, never over a bound."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from serving.guard.refusal import Refused
from serving.guard.settings import AdmissionLimits, EngineFacts

_MEMORY_SECONDS = 30.0  # how fast the measured rate forgets
_UNMEASURED_RETRY = 5.0
_LONGEST_RETRY = 3600.0


@dataclass(frozen=True)
class Bounds:
    """What may run and wait at most, in requests and tokens."""

    running_requests: int
    running_tokens: int
    queue_requests: int
    queue_tokens: int
    queue_seconds: float = math.inf


def find_bounds(limits: AdmissionLimits, facts: EngineFacts) -> Bounds:
    """The bounds that were set, and where they were not, those that suit the engine."""
    requests = limits.running_requests or facts.running_requests
    tokens = limits.running_tokens or facts.running_tokens or requests * facts.max_model_len
    queue = 2 * tokens if limits.queue_tokens is None else limits.queue_tokens
    return Bounds(requests, tokens, limits.queue_requests, queue, limits.queue_seconds)


@dataclass(eq=False)
class _Waiter:
    owner: str
    cost: int
    turn: asyncio.Future[None]


class DrainRate:
    """Tokens that left per second while anything ran, of the last half minute or so (exponentially weighted)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0.0
        self._seconds = 0.0
        self._at = clock()

    def pass_time(self, *, busy: bool) -> None:
        """Account for the time since the last call, in which something ran, or nothing did."""
        now = self._clock()
        if busy:
            fade = math.exp(-(now - self._at) / _MEMORY_SECONDS)
            self._tokens *= fade
            self._seconds = self._seconds * fade + (now - self._at)
        self._at = now

    def add(self, tokens: int) -> None:
        """Tokens that have left just now."""
        self._tokens += tokens

    def per_second(self) -> float | None:
        """None before anything was measured."""
        return self._tokens / self._seconds if self._tokens > 0 and self._seconds > 0 else None


class Admission:
    """A bounded running set and a bounded queue in front of it.

    Within an owner it is first come, first served; between owners it goes round. The head of the queue waits until
    it fits, so that large requests are not starved by small ones. What waits is never put out for a newcomer.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self.bounds = bounds
        self.running_requests = 0
        self.running_tokens = 0
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()
        self._rate = DrainRate(clock)

    def check(self, owner: str, cost: int, share: float = 1.0) -> None:
        """Raise Refused (429, with the seconds until there should be room) when `cost` would not be taken now."""
        if self._fits(cost) and not self._queues:
            return
        bounds = self.bounds
        place = "the server is at its limit: "
        after = self.waiting_tokens + cost
        if self.waiting_requests + 1 > bounds.queue_requests:
            mean = after / (self.waiting_requests + 1)
            raise self._overloaded(f"{place}{self.waiting_requests} requests are waiting", mean)
        if after > bounds.queue_tokens:
            raise self._overloaded(f"{place}{self.waiting_tokens} tokens are waiting", after - bounds.queue_tokens)
        own = self._queues.get(owner)
        if share < 1.0 and own and len(own) + 1 > max(1, math.floor(share * bounds.queue_requests)):
            raise self._overloaded(f"this key has {len(own)} requests waiting, its share of the queue", own[0].cost)
        rate = self.rate()
        if rate is not None:
            # Room for tokens helps nobody while as many requests run as may.
            has_place = self.running_requests < bounds.running_requests
            ahead = after - (max(0, bounds.running_tokens - self.running_tokens) if has_place else 0)
            wait = ahead / rate
            if wait > bounds.queue_seconds:
                message = f"{place}it would be {wait:.0f} s before this request could start"
                raise self._overloaded(message, ahead - bounds.queue_seconds * rate)

    def enter_at_once(self, owner: str, cost: int, share: float = 1.0) -> bool:
        """Let the request run now if possible; `leave` must follow a True. Raises Refused as `enter` does."""
        self.check(owner, cost, share)
        if self._queues or not self._fits(cost):
            return False
        self._start(cost)
        return True

    async def enter(self, owner: str, cost: int, share: float = 1.0) -> None:
        """Return when the request may run; `leave` must follow. Raises Refused. Cancelled, it leaves no trace."""
        if self.enter_at_once(owner, cost, share):
            return
        waiter = _Waiter(owner, cost, asyncio.get_running_loop().create_future())
        self._queues.setdefault(owner, deque()).append(waiter)
        self.waiting_requests += 1
        self.waiting_tokens += cost
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.leave(cost)  # it was let in and cancelled in the same step
            else:
                self._forget(waiter)
                self._let_in()  # it may have been the head that did not fit
            raise

    def leave(self, cost: int) -> None:
        """A request that ran has ended, one way or another."""
        self._rate.pass_time(busy=True)
        self._rate.add(cost)
        self.running_requests -= 1
        self.running_tokens -= cost
        self._let_in()

    def set_bounds(self, bounds: Bounds) -> None:
        """Other bounds from now on; what runs or waits stays."""
        if bounds != self.bounds:
            self.bounds = bounds
            self._let_in()

    def _fits(self, cost: int) -> bool:
        return (
            self.running_requests < self.bounds.running_requests
            and self.running_tokens + cost <= self.bounds.running_tokens
        )

    def _start(self, cost: int) -> None:
        self._rate.pass_time(busy=self.running_requests > 0)
        self.running_requests += 1
        self.running_tokens += cost

    def _let_in(self) -> None:
        while self._queues:
            owner, queue = next(iter(self._queues.items()))
            waiter = queue[0]
            if waiter.turn.done():  # cancelled, and about to say so
                self._forget(waiter)
                continue
            if not self._fits(waiter.cost):
                return
            self._forget(waiter)
            if owner in self._queues:
                self._queues.move_to_end(owner)
            self._start(waiter.cost)
            waiter.turn.set_result(None)

    def _forget(self, waiter: _Waiter) -> None:
        queue = self._queues.get(waiter.owner)
        if queue is None or waiter not in queue:
            return
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.owner]
        self.waiting_requests -= 1
        self.waiting_tokens -= waiter.cost

    def rate(self) -> float | None:
        """Tokens a second that leave while anything runs; None before the first has left."""
        self._rate.pass_time(busy=self.running_requests > 0)
        return self._rate.per_second()

    def _overloaded(self, message: str, tokens: float) -> Refused:
        """A refusal that names the seconds in which `tokens` drain at the measured rate."""
        rate = self.rate()
        seconds = _UNMEASURED_RETRY if rate is None else min(_LONGEST_RETRY, max(1.0, tokens / rate))
        return Refused(429, f"{message}; try again in {math.ceil(seconds)} s", "overloaded", retry_seconds=seconds)
