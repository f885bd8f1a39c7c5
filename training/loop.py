"""The training loop: steps, validation, checkpoints, and stopping when asked to."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from foundation.errors import UserError
from training.checkpoint.saver import CheckpointSaver
from training.config import TrainConfig
from training.data.blend import num_validation_samples, training_samples, validation_samples
from training.data.prefetch import Prefetcher
from training.data.samples import Batch, Samples, micro_batches
from training.engine import Engine
from training.health import HealthMonitor, StepOutcome, Verdict
from training.metrics import MetricsFile, perplexity
from training.planner.flops import throughput
from training.planner.prediction import Prediction
from training.report.terminal import StepReporter
from training.resume import Position, resume
from training.schedule import batch_size, learning_rate, total_steps
from training.watchdog import Watchdog


class TrainingLoop:
    """One rank's loop. `metrics` and `reporter` are rank 0's."""

    def __init__(
        self,
        config: TrainConfig,
        engine: Engine,
        rank: int,
        metrics: MetricsFile | None,
        reporter: StepReporter | None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._replica = config.layout.coordinate(rank).data
        self._metrics = metrics
        self._reporter = reporter
        self._saver = CheckpointSaver(engine.deepspeed, config, rank, self._note)
        self._prediction = Prediction(config)
        self._health = HealthMonitor(config.health)
        self._watchdog = Watchdog(config.out, rank, config.layout.world_size, config.health.hang_timeout_seconds)
        self._samples = training_samples(config, build=False)
        self._validation_count = self._round_to_replicas(num_validation_samples(config))
        self._asked_to_stop = False

    def run(self, position: Position) -> None:
        """Train from `position` to the end, or to the step at which a rank was sent SIGTERM. Collective."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        last = total_steps(self._config)
        with self._watchdog:
            if position.step == 0:
                self._validate(position)
            stopping = False
            while position.step < last and not stopping:
                with self._batches_from(position) as batches:
                    position, stopping = self._train(position, last, batches)
            self._watchdog.enter("save", position.step)
            self._saver.wait()
        if stopping:
            self._note(f"stopped at step {position.step} of {last} as asked; the same command continues")

    def _train(self, position: Position, last: int, batches: Prefetcher[Batch]) -> tuple[Position, bool]:
        """Steps until the end, a roll-back or a stop; the position then, and whether to stop."""
        config = self._config
        while position.step < last:
            position, outcome = self._step(position, batches)
            verdict, line = self._health.judge(outcome)
            if line is not None:
                self._note(line)
            if verdict is Verdict.ROLL_BACK:
                return self._roll_back(outcome), False
            stopping = self._engine.agree(self._asked_to_stop)
            ending = stopping or position.step == last
            if ending or position.step % config.training.validation_interval == 0:
                self._validate(position)
            if ending or position.step % config.checkpoint.interval == 0:
                self._save(position)
            if stopping:
                return position, position.step < last
        return position, False

    def _step(self, position: Position, batches: Prefetcher[Batch]) -> tuple[Position, StepOutcome]:
        size = batch_size(self._config, position.consumed_samples)
        after = position.after(size)
        rate = learning_rate(self._config.optimizer, self._tokens(after))
        self._watchdog.enter("step", after.step)
        waited, started = batches.waited_seconds, time.perf_counter()
        loss = self._engine.train_batch(batches, size, rate, position.next_sample)
        seconds = time.perf_counter() - started
        speed = throughput(self._config, size, seconds)
        if self._metrics is not None and after.step % self._config.training.log_interval == 0:
            self._metrics.write(
                step=after.step,
                tokens=self._tokens(after),
                loss=loss,
                learning_rate=rate,
                batch_size=size,
                gradient_norm=self._engine.gradient_norm,
                **speed,
                **self._prediction.beside(seconds, size),
                data_wait_share=(batches.waited_seconds - waited) / seconds,
            )
        if self._reporter is not None:
            self._reporter.step(
                after.step, self._tokens(after), {"loss": loss, "learning_rate": rate, "batch_size": size, **speed}
            )
        outcome = StepOutcome(
            after.step, loss, self._engine.skipped, first_sample=position.next_sample, last_sample=after.next_sample
        )
        return after, outcome

    def _roll_back(self, outcome: StepOutcome) -> Position:
        """Load the newest checkpoint, and continue behind the samples of the bad step."""
        self._watchdog.enter("roll back", outcome.step)
        self._saver.wait()
        position, notes = resume(self._config, self._engine)
        if position is None:
            raise UserError(f"{outcome}: loss spike, and there is no checkpoint to roll back to")
        for note in notes:
            self._note(note)
        if self._metrics is not None:
            self._metrics.rewind(position.step)
        skipped = outcome.last_sample - position.consumed_samples
        return Position(position.step, position.consumed_samples, skipped)

    def _validate(self, position: Position) -> None:
        """Mean loss on samples spread evenly over the validation data, the same ones every time."""
        self._watchdog.enter("validate", position.step)
        samples = validation_samples(self._config, self._validation_count)
        rounds = self._validation_count // self._round_size
        loss = self._engine.validation_loss(self._micro_batches(samples, start=0), rounds)
        if self._metrics is not None:
            self._metrics.write(
                step=position.step,
                tokens=self._tokens(position),
                validation_loss=loss,
                validation_perplexity=perplexity(loss),
            )
        self._note(f"step {position.step}: validation loss {loss:.3f}, perplexity {perplexity(loss):,.1f}")

    def _save(self, position: Position) -> None:
        self._watchdog.enter("save", position.step)
        stall = self._saver.save(
            position.step,
            {"consumed_samples": position.consumed_samples, "skipped_samples": position.skipped_samples},
        )
        if self._metrics is not None:
            self._metrics.write(step=position.step, tokens=self._tokens(position), checkpoint_stall_seconds=stall)

    @contextmanager
    def _batches_from(self, position: Position) -> Iterator[Prefetcher[Batch]]:
        batches = Prefetcher(self._micro_batches(self._samples, position.next_sample))
        try:
            yield batches
        finally:
            batches.close()

    def _micro_batches(self, samples: Samples, start: int) -> Iterator[Batch]:
        return micro_batches(
            samples,
            start=start,
            micro_batch_size=self._config.training.micro_batch_size,
            replica=self._replica,
            replicas=self._config.layout.data_parallel_size,
        )

    @property
    def _round_size(self) -> int:
        return self._config.training.micro_batch_size * self._config.layout.data_parallel_size

    def _round_to_replicas(self, available: int) -> int:
        wanted = min(self._config.training.validation_samples, available)
        return max(1, wanted // self._round_size) * self._round_size

    def _tokens(self, position: Position) -> int:
        return position.consumed_samples * self._config.model.sequence_length

    def _note(self, message: str) -> None:
        if self._reporter is not None:
            self._reporter.note(message)

    def _on_sigterm(self, *_: object) -> None:
        self._asked_to_stop = True
