"""What decides a run's speed and memory beside its training configuration."""

from pydantic import Field

from foundation.config import StrictModel
from training.planner.software import ENGINES, Engine, EngineName


class PlanOptions(StrictModel):
    """Of a planned run; the defaults are those of `mtnlg train`. None: what the engine does."""

    engine: EngineName = EngineName.mtnlg
    virtual_stages: int = Field(default=1, ge=1, description="interleaving: stages of the model that a rank holds")
    zero_stage: int | None = Field(default=None, ge=0, le=3, description="what the replicas share")
    scatter_gather: bool | None = Field(
        default=None, description="slices send a part each to the next stage (Narayanan et al. 2021, section 4.1)"
    )
    reduction_width: int | None = Field(default=None, description="bytes an element of the replicas' reduction")
    overlapped_replicas: bool | None = Field(default=None, description="that reduction goes on behind backward")

    @property
    def software(self) -> Engine:
        """The engine's properties."""
        return ENGINES[self.engine]

    @property
    def zero(self) -> int:
        """ZeRO's stage."""
        return self.software.zero_stage if self.zero_stage is None else self.zero_stage
