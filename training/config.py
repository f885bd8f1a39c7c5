"""The training configuration: what `mtnlg train FILE.yaml` reads."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from foundation.config import StrictModel
from foundation.errors import UserError
from training.model.config import ModelConfig, Recomputation
from training.parallel.layout import Layout


class SourceConfig(StrictModel):
    """One source of a blend."""

    path: Path = Field(description="folder with train.bin/.idx, validation.bin/.idx and the tokenizer's files")
    weight: float = Field(default=1.0, gt=0, description="its share of the samples, relative to the others'")


class DataConfig(StrictModel):
    """Token indexes, as `mtnlg data prepare` writes them, and the seed of their order."""

    path: Path | None = Field(default=None, description="the one source")
    blend: tuple[SourceConfig, ...] = Field(default=(), description="or several, by weight")
    seed: int = 1234

    @model_validator(mode="after")
    def _one_or_several(self) -> "DataConfig":
        if (self.path is None) == (not self.blend):
            raise ValueError("give either path, a folder of mtnlg data prepare, or blend, a list of path and weight")
        return self

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """All sources; the first one's tokenizer is the run's."""
        return self.blend if self.path is None else (SourceConfig(path=self.path),)


class OptimizerConfig(StrictModel):
    """Adam and its learning rate. The defaults are MT-NLG's (Smith et al. 2022, section 3.1)."""

    learning_rate: float = Field(default=5e-5, gt=0, description="peak")
    min_learning_rate: float = Field(default=5e-6, ge=0, description="where the cosine ends")
    warmup_tokens: int = Field(default=1_000_000_000, ge=0, description="linear warm-up")
    decay_tokens: int = Field(default=340_000_000_000, ge=1, description="end of the cosine, warm-up included")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0, description="on matrices only")
    gradient_clipping: float = Field(default=1.0, gt=0, description="largest norm of the whole gradient")


class BatchRamp(StrictModel):
    """A global batch that grows: from `start` by `increment` to the full size over `tokens`."""

    start: int = Field(ge=1)
    increment: int = Field(ge=1)
    tokens: int = Field(ge=1)


class CheckpointConfig(StrictModel):
    """When checkpoints are written and which are kept."""

    interval: int = Field(default=1000, ge=1, description="steps between checkpoints; there is one at the end too")
    keep_last: int = Field(default=2, ge=1, description="how many of the newest are kept")
    keep_every: int = Field(default=0, ge=0, description="keep those of steps divisible by this too; 0: none")
    asynchronous: bool = Field(default=True, description="training goes on while the copy is written")


class HealthConfig(StrictModel):
    """When a run that goes wrong is stopped or set back."""

    hang_timeout_seconds: float = Field(default=900.0, gt=0, description="no step for so long ends the job")
    max_skipped_steps: int = Field(default=20, ge=1, description="non-finite gradients in a row that end the job")
    spike_threshold: float | None = Field(default=None, gt=0, description="nats above the recent mean; none: never")
    spike_window: int = Field(default=50, ge=1, description="steps in the recent mean")
    on_spike: Literal["stop", "rollback"] = "rollback"
    max_rollbacks: int = Field(default=3, ge=0)


class RunConfig(StrictModel):
    """How long and in what portions to train."""

    train_tokens: int = Field(ge=1)
    global_batch_size: int = Field(ge=1, description="samples an optimizer step, over all replicas")
    micro_batch_size: int = Field(default=1, ge=1, description="samples a rank computes at once")
    batch_ramp: BatchRamp | None = None
    precision: Literal["bf16", "fp32"] = Field(default="bf16", description="bf16 keeps fp32 masters and gradients")
    recomputation: Recomputation = Field(
        default="none", description="what backward computes again rather than keeps: core attention, or all of a block"
    )
    compile: bool = Field(default=False, description="fuse the blocks' small operations; the first step takes longer")
    seed: int = Field(default=1234, description="of the initial weights and of dropout")
    log_interval: int = Field(default=1, ge=1, description="steps between lines of metrics.jsonl")
    validation_interval: int = Field(default=100, ge=1, description="steps between validation losses")
    validation_samples: int = Field(default=64, ge=1)
    cluster: str | None = Field(
        default=None, description="where it runs, in configs/cluster/ or a file: metrics then hold the planned time too"
    )
    peak_tflops: float | None = Field(
        default=None, gt=0, description="of one device, in 10^12 FLOP/s; the utilisation is reported where it is stated"
    )


class TrainConfig(StrictModel):
    """One pretraining run."""

    model: ModelConfig
    layout: Layout = Layout()
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: RunConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    health: HealthConfig = HealthConfig()
    out: Path = Field(description="run folder: checkpoints, metrics, the loss curve, the resolved configuration")

    def check(self) -> None:
        """Raise UserError when the layout cannot run this model with this batch."""
        self.layout.check_model(self.model)
        micro_batch_size, ramp = self.training.micro_batch_size, self.training.batch_ramp
        self.layout.check_batch("training.global_batch_size", self.training.global_batch_size, micro_batch_size)
        if ramp is not None:
            self.layout.check_batch("training.batch_ramp.start", ramp.start, micro_batch_size)
            self.layout.check_batch("training.batch_ramp.increment", ramp.increment, micro_batch_size)
            growth = self.training.global_batch_size - ramp.start
            if growth <= 0 or growth % ramp.increment:
                raise UserError(
                    f"training.batch_ramp does not reach training.global_batch_size "
                    f"{self.training.global_batch_size} from {ramp.start} in steps of {ramp.increment}"
                )
