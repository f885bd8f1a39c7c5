"""A pipeline's time by discrete events: every stage works through its order as soon as what it needs has come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from training.planner.schedule import Work, order_of_work


@dataclass(frozen=True)
class Times:
    """Seconds of one micro-batch in each stage of the model, and of handing it over.

    `forward` and `backward` are by stage of the model, in order: part k of rank r is stage k * ranks + r.
    `boundary[i]` is the transfer from stage i to the next, or back. `duplex`: a rank sends what it made while it
    receives what is next; else receiving holds it up as well, unless it waited for it anyway.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    boundary: Sequence[float]
    duplex: bool = True


class Event(NamedTuple):
    """A rank's work on a micro-batch. `sent` is when it has handed the result over too."""

    work: Work
    start: float
    end: float
    sent: float


def simulate(times: Times, ranks: int, micro_batches: int) -> list[list[Event]]:
    """Every rank's events, in order, from time 0.

    Raises ValueError when the stages are not a multiple of the ranks, or the order can never be worked through.
    """
    stages = len(times.forward)
    if stages % ranks:
        raise ValueError(f"{stages} stages are no multiple of {ranks} ranks")
    orders = [order_of_work(ranks, rank, micro_batches, stages // ranks) for rank in range(ranks)]
    runs = [_Rank(rank, ranks, order, times) for rank, order in enumerate(orders)]
    # When a micro-batch's activations and gradients have come, by stage.
    arrived = [[[-1.0] * micro_batches for _ in range(stages)] for _ in range(2)]
    arrived[1][0] = [0.0] * micro_batches
    waiting = runs
    while waiting:
        before = sum(len(run.events) for run in waiting)
        for run in waiting:
            run.go_on(arrived)
        if sum(len(run.events) for run in waiting) == before:
            raise ValueError("the pipeline's order of work waits for itself")
        waiting = [run for run in waiting if len(run.events) < len(run.order)]
    return [run.events for run in runs]


class _Rank:
    """One rank and how far it is."""

    def __init__(self, rank: int, ranks: int, order: Sequence[Work], times: Times) -> None:
        self.order = order
        self.events: list[Event] = []
        self._rank, self._ranks = rank, ranks
        self._free = 0.0
        self._duration = (times.backward, times.forward)
        # By direction and stage: the transfer that brings the work, and the one that takes its result on.
        boundary = [0.0, *times.boundary, 0.0] if ranks > 1 else [0.0] * (len(times.forward) + 1)
        self._receive = (boundary[1:], boundary[:-1])
        self._send = (boundary[:-1], boundary[1:])
        self._receives = not times.duplex
        self._last = len(times.forward) - 1

    def go_on(self, arrived: list[list[list[float]]]) -> None:
        """Work until something has not come yet."""
        order, events, ranks, last = self.order, self.events, self._ranks, self._last
        free = self._free
        for number in range(len(events), len(order)):
            work = order[number]
            forward, micro_batch, part = work
            stage = part * ranks + self._rank
            came = arrived[forward][stage][micro_batch]
            if came < 0:
                break
            # Receiving begins when both are ready, so that only one who waited has it for nothing.
            start = max(free + self._receive[forward][stage] if self._receives else free, came)
            end = start + self._duration[forward][stage]
            free = end + self._send[forward][stage]
            if forward:
                if stage < last:
                    arrived[1][stage + 1][micro_batch] = free
                else:
                    arrived[0][stage][micro_batch] = end
            elif stage:
                arrived[0][stage - 1][micro_batch] = free
            events.append(Event(work, start, end, free))
        self._free = free
