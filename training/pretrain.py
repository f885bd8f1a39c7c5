"""The pretraining loop, the same on every rank."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from training.config import TrainConfig
from training.data.samples import Batch, SampleOrder, TokenStream, micro_batches
from training.engine import build_engine
from training.metrics import MetricsFile, StepReporter, draw_curve, step_reporter
from training.schedule import learning_rate


def pretrain(config: TrainConfig, rank: int, console: Console | None) -> None:
    """Train from the newest checkpoint, or from the start, to the configured number of tokens.

    `console` is where rank 0 reports; None on the others. Collective.
    """
    engine = build_engine(config, rank)
    newest = newest_checkpoint(config.out)
    done = load_checkpoint(engine, config, *newest) if newest else 0
    with ExitStack() as stack:
        reporter = stack.enter_context(step_reporter(console, config.iterations, done)) if console else None
        metrics = MetricsFile(config.out, done) if console else None
        if metrics is not None:
            stack.callback(metrics.close)
        if reporter is not None and newest is not None:
            reporter.note(f"resuming {newest[0]} at step {done}")
        _Loop(config, engine, rank, metrics, reporter).run(done)
    if console is not None:
        console.print(f"loss curve: {draw_curve(config.out)}")


class _Loop:
    def __init__(
        self, config: TrainConfig, engine: Any, rank: int, metrics: MetricsFile | None, reporter: StepReporter | None
    ) -> None:
        self._config = config
        self._engine = engine
        self._replica = config.layout.coordinate(rank).data
        self._metrics = metrics
        self._reporter = reporter
        self._train = TokenStream(config.data.path / "train", config.model.sequence_length)
        self._validation = TokenStream(config.data.path / "validation", config.model.sequence_length)

    def run(self, done: int) -> None:
        config = self._config.training
        order = SampleOrder(self._train.num_samples, self._config.data.seed)
        batches = self._batches(self._train, order, start=done * config.global_batch_size)
        if done == 0:
            self._validate(0)
        for step in range(done + 1, self._config.iterations + 1):
            self._step(step, batches)
            last = step == self._config.iterations
            if last or step % config.validation_interval == 0:
                self._validate(step)
            if last or step % config.checkpoint_interval == 0:
                folder = save_checkpoint(self._engine, self._config, step)
                self._note(f"checkpoint: {folder}")

    def _step(self, step: int, batches: Iterator[Batch]) -> None:
        tokens = step * self._config.tokens_per_step
        rate = learning_rate(self._config.optimizer, tokens)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        started = time.perf_counter()
        loss = float(self._engine.train_batch(data_iter=batches))
        speed = self._config.tokens_per_step / (time.perf_counter() - started)
        if self._metrics is not None and step % self._config.training.log_interval == 0:
            norm = float(self._engine.get_global_grad_norm())
            self._metrics.write(
                step=step, tokens=tokens, loss=loss, learning_rate=rate, gradient_norm=norm, tokens_per_second=speed
            )
        if self._reporter is not None:
            self._reporter.step(step, loss=loss, learning_rate=rate, tokens_per_second=speed)

    def _validate(self, step: int) -> None:
        """Mean loss on samples spread evenly over the validation stream, the same ones every time."""
        per_batch = self._config.training.micro_batch_size * self._config.layout.data_parallel_size
        wanted = min(self._config.training.validation_samples, self._validation.num_samples)
        rounds = max(1, wanted // per_batch)
        order = [index * self._validation.num_samples // (rounds * per_batch) for index in range(rounds * per_batch)]
        loss = float(self._engine.eval_batch(self._batches(self._validation, order, start=0), num_micro_batches=rounds))
        if self._metrics is not None:
            self._metrics.write(step=step, tokens=step * self._config.tokens_per_step, validation_loss=loss)
        self._note(f"step {step}: validation loss {loss:.3f}")

    def _batches(self, stream: TokenStream, order: SampleOrder | list[int], start: int) -> Iterator[Batch]:
        return micro_batches(
            stream,
            order,
            start=start,
            micro_batch_size=self._config.training.micro_batch_size,
            replica=self._replica,
            replicas=self._config.layout.data_parallel_size,
        )

    def _note(self, message: str) -> None:
        if self._reporter is not None:
            self._reporter.note(message)
