"""A pretraining run from its newest checkpoint to its end, the same on every rank."""

from contextlib import ExitStack

import torch.distributed as dist
from rich.console import Console

from foundation.errors import UserError
from foundation.manifest import Manifest
from training.checkpoint.commit import agree_on_newest, discard_unfinished
from training.checkpoint.reader import CheckpointReader
from training.checkpoint.state import restore
from training.config import TrainConfig
from training.engine import build_engine
from training.loop import Position, TrainingLoop
from training.metrics import MetricsFile, draw_curve, step_reporter
from training.schedule import total_steps


def pretrain(config: TrainConfig, rank: int, console: Console | None) -> None:
    """Train from the newest checkpoint, of whatever layout, or from the start, to the configured number of tokens.

    `console` is where rank 0 reports; None on the others. Collective.
    """
    engine = build_engine(config, rank)
    notes = discard_unfinished(config.out) if rank == 0 else []
    dist.barrier()
    newest, skipped = agree_on_newest(config.out)
    position = Position(step=0, consumed_samples=0)
    if newest is not None:
        folder, manifest = newest
        _check_same_model(config, manifest, str(folder))
        restore(engine.deepspeed, config.model, engine.tensor_slice, CheckpointReader(folder, manifest))
        position = Position(manifest.about["step"], manifest.about["consumed_samples"])
        notes = [*notes, *skipped, f"resuming {folder} at step {position.step}"]
    with ExitStack() as stack:
        reporter = metrics = None
        if console is not None:
            reporter = stack.enter_context(step_reporter(console, total_steps(config), position.step))
            metrics = stack.enter_context(MetricsFile(config.out, position.step))
            for note in notes:
                reporter.note(note)
        TrainingLoop(config, engine, rank, metrics, reporter).run(position)
    if console is not None:
        console.print(f"loss curve: {draw_curve(config.out)}")


def _check_same_model(config: TrainConfig, manifest: Manifest, where: str) -> None:
    theirs, mine = manifest.about["model"], config.model.model_dump(mode="json")
    names = sorted(name for name in {*theirs, *mine} if theirs.get(name) != mine.get(name))
    if names:
        difference = ", ".join(f"{name} {theirs.get(name)} instead of {mine.get(name)}" for name in names)
        raise UserError(f"{where} is of another model ({difference}); choose another out, or discard it with --restart")
