"""The training loop: steps, validation, checkpoints, and stopping when asked to."""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from training.checkpoint.saver import CheckpointSaver
from training.config import TrainConfig
from training.data.samples import Batch, SampleOrder, TokenStream, micro_batches
from training.engine import Engine
from training.metrics import MetricsFile, StepReporter
from training.schedule import batch_sizes, learning_rate, total_steps


@dataclass(frozen=True)
class Position:
    """How far a run is."""

    step: int
    consumed_samples: int


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
        self._train = TokenStream(config.data.path / "train", config.model.sequence_length)
        self._validation = TokenStream(config.data.path / "validation", config.model.sequence_length)
        self._asked_to_stop = False

    def run(self, position: Position) -> None:
        """Train from `position` to the end, or to the step at which a rank was sent SIGTERM. Collective."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        config = self._config
        order = SampleOrder(self._train.num_samples, config.data.seed)
        batches = self._batches(self._train, order, start=position.consumed_samples)
        last = total_steps(config)
        if position.step == 0:
            self._validate(position)
        for size in batch_sizes(config, position.consumed_samples):
            position = Position(position.step + 1, position.consumed_samples + size)
            self._step(position, size, batches)
            ending = position.step == last or self._engine.agree(self._asked_to_stop)
            if ending or position.step % config.training.validation_interval == 0:
                self._validate(position)
            if ending or position.step % config.checkpoint.interval == 0:
                self._save(position)
            if ending:
                break
        self._saver.wait()
        if position.step < last:
            self._note(f"stopped at step {position.step} of {last} as asked; the same command continues")

    def _step(self, position: Position, size: int, batches: Iterator[Batch]) -> None:
        tokens = self._tokens(position)
        rate = learning_rate(self._config.optimizer, tokens)
        started = time.perf_counter()
        loss = self._engine.train_batch(batches, size, rate)
        speed = size * self._config.model.sequence_length / (time.perf_counter() - started)
        if self._metrics is not None and position.step % self._config.training.log_interval == 0:
            self._metrics.write(
                step=position.step,
                tokens=tokens,
                loss=loss,
                learning_rate=rate,
                batch_size=size,
                gradient_norm=self._engine.gradient_norm,
                tokens_per_second=speed,
            )
        if self._reporter is not None:
            self._reporter.step(position.step, loss=loss, learning_rate=rate, tokens_per_second=speed)

    def _validate(self, position: Position) -> None:
        """Mean loss on samples spread evenly over the validation stream, the same ones every time."""
        per_round = self._config.training.micro_batch_size * self._config.layout.data_parallel_size
        wanted = min(self._config.training.validation_samples, self._validation.num_samples)
        rounds = max(1, wanted // per_round)
        count = rounds * per_round
        order = [index * self._validation.num_samples // count for index in range(count)]
        loss = self._engine.validation_loss(self._batches(self._validation, order, start=0), rounds)
        if self._metrics is not None:
            self._metrics.write(step=position.step, tokens=self._tokens(position), validation_loss=loss)
        self._note(f"step {position.step}: validation loss {loss:.3f}")

    def _save(self, position: Position) -> None:
        stall = self._saver.save(position.step, {"consumed_samples": position.consumed_samples})
        if self._metrics is not None:
            self._metrics.write(step=position.step, tokens=self._tokens(position), checkpoint_stall_seconds=stall)

    def _batches(self, stream: TokenStream, order: SampleOrder | list[int], start: int) -> Iterator[Batch]:
        return micro_batches(
            stream,
            order,
            start=start,
            micro_batch_size=self._config.training.micro_batch_size,
            replica=self._replica,
            replicas=self._config.layout.data_parallel_size,
        )

    def _tokens(self, position: Position) -> int:
        return position.consumed_samples * self._config.model.sequence_length

    def _note(self, message: str) -> None:
        if self._reporter is not None:
            self._reporter.note(message)

    def _on_sigterm(self, *_: object) -> None:
        self._asked_to_stop = True
