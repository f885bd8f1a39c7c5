"""Is the run still healthy? Non-finite gradients are skipped and counted, a loss spike stops or rolls back."""

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from foundation.errors import UserError
from training.config import HealthConfig


class Verdict(Enum):
    """What to do after a step."""

    CONTINUE = "continue"
    ROLL_BACK = "roll back"


@dataclass(frozen=True)
class StepOutcome:
    """What a step did: its loss, whether the optimizer skipped it, and the samples it saw, last excluded."""

    step: int
    loss: float
    skipped: bool
    first_sample: int
    last_sample: int

    def __str__(self) -> str:
        return f"step {self.step} (samples {self.first_sample} to {self.last_sample - 1})"


class HealthMonitor:
    """Judges every step; the same on every rank, since all see the same losses."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._recent: deque[float] = deque(maxlen=config.spike_window)
        self._skipped_in_a_row = 0
        self._rollbacks = 0
        self.skipped_steps = 0

    def judge(self, outcome: StepOutcome) -> tuple[Verdict, str | None]:
        """What to do after a step, and a line for the user, if any. Raises UserError when the run should end."""
        if outcome.skipped or not math.isfinite(outcome.loss):
            return Verdict.CONTINUE, self._count_skipped(outcome)
        self._skipped_in_a_row = 0
        if self._is_spike(outcome.loss):
            return self._on_spike(outcome)
        self._recent.append(outcome.loss)
        return Verdict.CONTINUE, None

    def _count_skipped(self, outcome: StepOutcome) -> str:
        self.skipped_steps += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._config.max_skipped_steps:
            raise UserError(
                f"the gradient was not finite for {self._skipped_in_a_row} steps in a row, the last of them {outcome}; "
                "lower optimizer.learning_rate, or resume an earlier checkpoint"
            )
        return f"{outcome}: the gradient is not finite, the update is skipped ({self.skipped_steps} so far)"

    def _is_spike(self, loss: float) -> bool:
        threshold = self._config.spike_threshold
        if threshold is None or len(self._recent) < self._config.spike_window:
            return False
        return loss > sum(self._recent) / len(self._recent) + threshold

    def _on_spike(self, outcome: StepOutcome) -> tuple[Verdict, str]:
        mean = sum(self._recent) / len(self._recent)
        line = (
            f"{outcome}: loss {outcome.loss:.3f} against a mean of {mean:.3f} over the last {len(self._recent)} steps"
        )
        if self._config.on_spike == "stop":
            raise UserError(f"{line}; health.on_spike is stop")
        self._rollbacks += 1
        if self._rollbacks > self._config.max_rollbacks:
            raise UserError(f"{line}; rolled back {self._config.max_rollbacks} times already")
        self._recent.clear()
        return Verdict.ROLL_BACK, f"{line}; rolling back, and skipping these samples"
