"""Where a run continues: the newest checkpoint that verifies, whatever layout wrote it."""

from dataclasses import dataclass

from foundation.errors import UserError
from foundation.manifest import Manifest
from training.checkpoint.commit import agree_on_newest
from training.checkpoint.reader import CheckpointReader
from training.checkpoint.state import restore
from training.config import TrainConfig
from training.engine import Engine

# No tensor depends on them: a run that is continued, or starts from imported weights, may choose them anew.
_MAY_CHANGE = {"attention_dropout", "hidden_dropout"}


@dataclass(frozen=True)
class Position:
    """How far a run is. `skipped_samples` are those that roll-backs left out; they count for the data alone."""

    step: int = 0
    consumed_samples: int = 0
    skipped_samples: int = 0

    @property
    def next_sample(self) -> int:
        """Number of the next sample to read."""
        return self.consumed_samples + self.skipped_samples

    def after(self, samples: int) -> "Position":
        """The position one step of `samples` later."""
        return Position(self.step + 1, self.consumed_samples + samples, self.skipped_samples)


def resume(config: TrainConfig, engine: Engine) -> tuple[Position | None, list[str]]:
    """Load the newest checkpoint that verifies; its position, None when there is none, and lines for the user.

    Raises UserError when it is another model's. Collective.
    """
    newest, notes = agree_on_newest(config.out)
    if newest is None:
        return None, notes
    folder, manifest = newest
    _check_same_model(config, manifest, str(folder))
    restore(engine.deepspeed, config.model, engine.tensor_slice, CheckpointReader(folder, manifest))
    about = manifest.about
    position = Position(about["step"], about["consumed_samples"], about["skipped_samples"])
    return position, [*notes, f"resuming {folder} at step {position.step}"]


def _check_same_model(config: TrainConfig, manifest: Manifest, where: str) -> None:
    theirs, mine = manifest.about["model"], config.model.model_dump(mode="json")
    names = sorted(name for name in {*theirs, *mine} - _MAY_CHANGE if theirs.get(name) != mine.get(name))
    if names:
        difference = ", ".join(f"{name} {theirs.get(name)} instead of {mine.get(name)}" for name in names)
        raise UserError(f"{where} is of another model ({difference}); choose another out, or discard it with --restart")
