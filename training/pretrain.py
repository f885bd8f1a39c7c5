"""A pretraining run from its newest checkpoint to its end, the same on every rank."""

from contextlib import ExitStack

import torch.distributed as dist
from rich.console import Console

from training.checkpoint.commit import discard_unfinished
from training.config import TrainConfig
from training.data.blend import training_samples
from training.engine import build_engine
from training.loop import TrainingLoop
from training.metrics import MetricsFile, draw_curve
from training.report.launches import record_launch
from training.report.terminal import step_reporter
from training.resume import Position, resume


def pretrain(config: TrainConfig, rank: int, console: Console | None) -> None:
    """Train from the newest checkpoint, of whatever layout, or from the start, to the configured number of tokens.

    `console` is where rank 0 reports; None on the others. Collective.
    """
    engine = build_engine(config, rank)
    discarded: list[str] = []
    if rank == 0:
        discarded = discard_unfinished(config.out)
        training_samples(config, build=True)
    dist.barrier()
    record_launch(config, rank)
    position, notes = resume(config, engine)
    position = position or Position()
    with ExitStack() as stack:
        reporter = metrics = None
        if console is not None:
            reporter = stack.enter_context(step_reporter(console, config, position.step))
            metrics = stack.enter_context(MetricsFile(config.out, position.step))
            for note in [*discarded, *notes]:
                reporter.note(note)
        TrainingLoop(config, engine, rank, metrics, reporter).run(position)
    if console is not None:
        console.print(f"loss curve: {draw_curve(config.out)}")
