"""The simulated pipeline against the closed formulas, and its order of work against DeepSpeed's and Megatron's."""

from itertools import pairwise

import pytest
from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass, TrainSchedule

from training.planner.schedule import Work, in_flight, order_of_work
from training.planner.simulate import Times, simulate


def equal_times(stages: int, boundary: float = 0.0, *, duplex: bool = True) -> Times:
    return Times([1.0] * stages, [2.0] * stages, [boundary] * (stages - 1), duplex)


def seconds(times: Times, ranks: int, micro_batches: int) -> float:
    return max(events[-1].sent for events in simulate(times, ranks, micro_batches))


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 7), (4, 2), (4, 4), (4, 8), (35, 240), (7, 3)])
def test_equal_stages_idle_by_the_closed_formula(ranks: int, micro_batches: int) -> None:
    """(p - 1) / m of the rest (Narayanan et al. 2021, section 2.2.1)."""
    busy = 3.0 * micro_batches
    assert seconds(equal_times(ranks), ranks, micro_batches) == pytest.approx(busy * (1 + (ranks - 1) / micro_batches))


@pytest.mark.parametrize(
    ("ranks", "parts", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 16), (8, 4, 8), (35, 3, 70)]
)
def test_interleaving_divides_the_bubble(ranks: int, parts: int, micro_batches: int) -> None:
    """(p - 1) / (v m) of the rest (Narayanan et al. 2021, section 2.2.2)."""
    busy = 3.0 * parts * micro_batches
    expected = busy * (1 + (ranks - 1) / (parts * micro_batches))
    assert seconds(equal_times(ranks * parts), ranks, micro_batches) == pytest.approx(expected)


def test_the_slowest_stage_sets_the_pace() -> None:
    times = Times([1.0, 1.0, 1.5], [2.0, 2.0, 3.0], [0.0, 0.0])
    # Each micro-batch costs the last stage 4.5; the first one's way there takes 2, the last one's back 4.
    assert seconds(times, 3, 20) == pytest.approx(2 + 20 * 4.5 + 4)


def test_transfers_cost_both_sides_unless_they_exchange_at_once() -> None:
    alone = seconds(equal_times(4), 4, 40)
    at_once = seconds(equal_times(4, 0.1), 4, 40)
    in_turn = seconds(equal_times(4, 0.1, duplex=False), 4, 40)
    # A middle stage sends twice a micro-batch, and in turn receives twice as well.
    assert alone + 40 * 0.2 <= at_once < in_turn
    assert in_turn == pytest.approx(alone + 40 * 0.4, rel=0.02)


def test_work_follows_what_it_needs() -> None:
    events = simulate(equal_times(6, 0.25), 3, 6)
    done: dict[tuple[bool, int, int], float] = {}
    for rank, mine in enumerate(events):
        assert all(before.sent <= after.start + 1e-12 for before, after in pairwise(mine))
        for event in mine:
            done[event.work.forward, event.work.part * 3 + rank, event.work.micro_batch] = event.end
    for rank, mine in enumerate(events):
        for event in mine:
            stage, forward = event.work.part * 3 + rank, event.work.forward
            if forward and stage:
                assert event.start >= done[True, stage - 1, event.work.micro_batch] + 0.25 - 1e-12
            if not forward and stage < 5:
                assert event.start >= done[False, stage + 1, event.work.micro_batch] + 0.25 - 1e-12


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 5), (4, 4), (4, 9), (5, 3)])
def test_the_order_is_deepspeed_s(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        schedule = TrainSchedule(micro_batches=micro_batches, stages=stages, stage_id=stage)
        forwards = [
            isinstance(command, ForwardPass)
            for step in schedule.steps()
            for command in step
            if isinstance(command, (ForwardPass, BackwardPass))
        ]
        ours = order_of_work(stages, stage, micro_batches)
        # DeepSpeed's last stage does a backward pass at the first chance; so do all.
        assert [work.forward for work in ours] == forwards


def test_megatron_s_interleaved_order() -> None:
    """Rank 0 of 2, two parts, four micro-batches: a warm-up of 2 (p - 1) + (v - 1) p = 4, in groups of p."""
    order = order_of_work(2, 0, 4, parts=2)
    warm_up = [Work(True, 0, 0), Work(True, 1, 0), Work(True, 0, 1), Work(True, 1, 1)]
    assert list(order[:4]) == warm_up
    assert order[4:6] == (Work(True, 2, 0), Work(False, 0, 1))
    assert len(order) == len(set(order)) == 16


def test_interleaving_keeps_more_in_flight() -> None:
    """The first rank's activations grow by 1 + (p - 1) / (p v) (Korthikanti et al. 2022, section 4.2.3)."""
    assert in_flight(8, 0, 64, parts=3) / 3 == pytest.approx(8 * (1 + 7 / 24))


def test_stages_that_are_no_multiple_of_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="no multiple"):
        simulate(equal_times(5), 2, 4)
