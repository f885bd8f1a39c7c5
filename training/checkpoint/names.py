"""Where things are in a checkpoint."""

from pathlib import Path

LATEST = "latest"
OPTIMIZER_STATES = ("master", "exp_avg", "exp_avg_sq")


def checkpoint_root(run: Path) -> Path:
    """Where a run folder keeps its checkpoints."""
    return run / "checkpoints"


def step_folder(run: Path, step: int) -> Path:
    """The folder of one step's checkpoint."""
    return checkpoint_root(run) / f"step-{step:08d}"


def weights_file(stage: int, tensor_rank: int) -> str:
    """The file with one stage's weights on one tensor slice."""
    return f"weights-stage-{stage:03d}-slice-{tensor_rank:03d}.safetensors"


def optimizer_file(state: str, stage: int, tensor_rank: int, replica: int) -> str:
    """The file with one rank's part of one of the OPTIMIZER_STATES: who needs the masters reads no moments."""
    return f"optimizer-{state}-stage-{stage:03d}-slice-{tensor_rank:03d}-replica-{replica:03d}.safetensors"


def stage_of(layer: int, stage_bounds: list[int]) -> int:
    """The stage that owns a pipeline layer; stage i owns layers bounds[i] to bounds[i + 1] - 1."""
    return next(stage for stage, stop in enumerate(stage_bounds[1:]) if layer < stop)
