"""Judging steps: what is skipped, what rolls back, what ends the run."""

import math

import pytest

from foundation.errors import UserError
from training.config import HealthConfig
from training.health import HealthMonitor, StepOutcome, Verdict


def outcome(loss: float, *, skipped: bool = False, step: int = 1) -> StepOutcome:
    return StepOutcome(step, loss, skipped, first_sample=step * 8, last_sample=step * 8 + 8)


def test_non_finite_steps_are_counted_and_named_and_end_the_run_when_they_do_not_stop() -> None:
    monitor = HealthMonitor(HealthConfig(max_skipped_steps=3))
    assert monitor.judge(outcome(5.0)) == (Verdict.CONTINUE, None)
    verdict, line = monitor.judge(outcome(math.nan, skipped=True, step=2))
    assert verdict is Verdict.CONTINUE
    assert line is not None
    assert "step 2 (samples 16 to 23): the gradient is not finite" in line
    assert monitor.judge(outcome(5.0, skipped=True))[0] is Verdict.CONTINUE
    assert monitor.judge(outcome(5.0)) == (Verdict.CONTINUE, None)
    assert monitor.skipped_steps == 2
    for _ in range(2):
        monitor.judge(outcome(math.inf))
    with pytest.raises(UserError, match=r"not finite for 3 steps in a row.*step 9 .samples 72 to 79."):
        monitor.judge(outcome(math.nan, step=9))


def test_a_spike_is_judged_against_the_recent_mean() -> None:
    monitor = HealthMonitor(HealthConfig(spike_threshold=1.0, spike_window=4, max_rollbacks=1))
    for loss in (9.0, 5.0, 5.0, 5.0, 5.0):
        assert monitor.judge(outcome(loss)) == (Verdict.CONTINUE, None)
    assert monitor.judge(outcome(5.9)) == (Verdict.CONTINUE, None)
    verdict, line = monitor.judge(outcome(6.5, step=7))
    assert verdict is Verdict.ROLL_BACK
    assert line is not None
    assert "step 7 (samples 56 to 63): loss 6.500 against a mean of 5.225" in line
    # The window starts anew, and a second roll-back is one too many.
    assert monitor.judge(outcome(8.0)) == (Verdict.CONTINUE, None)
    for _ in range(4):
        monitor.judge(outcome(5.0))
    with pytest.raises(UserError, match="rolled back 1 times already"):
        monitor.judge(outcome(9.0))


def test_a_spike_may_stop_the_run() -> None:
    monitor = HealthMonitor(HealthConfig(spike_threshold=1.0, spike_window=1, on_spike="stop"))
    monitor.judge(outcome(5.0))
    with pytest.raises(UserError, match=r"samples 24 to 31.*on_spike is stop"):
        monitor.judge(outcome(7.0, step=3))


def test_without_a_threshold_nothing_is_a_spike() -> None:
    monitor = HealthMonitor(HealthConfig(spike_window=1))
    monitor.judge(outcome(1.0))
    assert monitor.judge(outcome(100.0)) == (Verdict.CONTINUE, None)
