"""The order of work of each pipeline stage: 1F1B and interleaved 1F1B (Narayanan et al. 2021, section 2.2)."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Work(NamedTuple):
    """One micro-batch through one of a rank's parts of the model, forward or backward."""

    forward: bool
    micro_batch: int
    part: int


@lru_cache(maxsize=256)
def order_of_work(stages: int, stage: int, micro_batches: int, parts: int = 1) -> tuple[Work, ...]:
    """What a stage does, in order. With one part plain 1F1B; with several Megatron's interleaved schedule.

    That one needs as many micro-batches as a multiple of the stages (Megatron-LM, `schedules.py`).
    """
    total = micro_batches * parts
    warm_up = min(_warm_up(stages, stage, micro_batches, parts), total)
    forwards = [_work(number, stages, parts, forward=True) for number in range(total)]
    backwards = [_work(number, stages, parts, forward=False) for number in range(total)]
    return tuple(_interleave(forwards, backwards, warm_up))


def in_flight(stages: int, stage: int, micro_batches: int, parts: int = 1) -> int:
    """Most forward passes that a stage is ahead of its backward passes, each of one of its parts.

    Of 1F1B the micro-batches whose activations it holds (Narayanan et al. 2021, section 2.2.1).
    """
    return min(_warm_up(stages, stage, micro_batches, parts) + 1, micro_batches * parts)


def _warm_up(stages: int, stage: int, micro_batches: int, parts: int) -> int:
    if parts == 1:
        return stages - stage - 1
    if micro_batches == stages:
        return micro_batches * parts
    return 2 * (stages - stage - 1) + (parts - 1) * stages


def _work(number: int, stages: int, parts: int, *, forward: bool) -> Work:
    if parts == 1:
        return Work(forward, number, 0)
    # Groups of as many micro-batches as stages go through all parts before the next group begins.
    group, place = divmod(number, stages * parts)
    part, within = divmod(place, stages)
    return Work(forward, group * stages + within, part if forward else parts - 1 - part)


def _interleave(forwards: list[Work], backwards: list[Work], warm_up: int) -> Iterator[Work]:
    yield from forwards[:warm_up]
    for ahead, behind in zip(forwards[warm_up:], backwards, strict=False):
        yield ahead
        yield behind
    yield from backwards[len(forwards) - warm_up :]
