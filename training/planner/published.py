"""Iterations that were published, and the requests that plan them: what the planner is held against."""

from functools import lru_cache

from pydantic import Field

from foundation.config import CONFIG_ROOT, StrictModel
from training.config import TrainConfig
from training.model.config import ModelConfig
from training.planner.cluster import load_cluster
from training.planner.flops import hardware_flops
from training.planner.request import Request

_VOCABULARY, _SEQUENCE = 51200, 2048


class PublishedRun(StrictModel):
    """One iteration: its time, or the TFLOP/s a GPU that it was given as."""

    name: str
    source: str
    engine: str
    model: tuple[int, int, int] = Field(description="layers, hidden size, heads")
    layout: tuple[int, int, int] = Field(description="tensor, pipeline, data")
    batch: int
    micro_batch: int = 1
    parts: int = 1
    recompute: str = "full"
    sequence_parallel: bool = False
    seconds: float | None = None
    tflops: float | None = None
    fitted: bool = False

    @property
    def config(self) -> ModelConfig:
        """The model; its vocabulary is padded already."""
        layers, hidden, heads = self.model
        return ModelConfig(
            num_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            sequence_length=_SEQUENCE,
            vocab_size=_VOCABULARY,
        )

    @property
    def measured_seconds(self) -> float:
        """Of an iteration."""
        if self.seconds is not None:
            return self.seconds
        tensor, pipeline, data = self.layout
        performed = hardware_flops(self.config, _VOCABULARY, self.batch, "full")
        return performed / (tensor * pipeline * data) / ((self.tflops or 0.0) * 1e12)

    def request(self, cluster: str = "selene") -> Request:
        """What `mtnlg plan` would be asked."""
        tensor, pipeline, data = self.layout
        base = TrainConfig.model_validate(
            {
                "model": self.config,
                "data": {"path": "unused"},
                "training": {"train_tokens": 1, "global_batch_size": self.batch},
                "out": "unused",
            }
        )
        return Request(
            base=base,
            cluster=load_cluster(cluster, None, None),
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            batch=self.batch,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            sequence_parallel=self.sequence_parallel,
            virtual_stages=self.parts,
            engine=self.engine,
        )


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """Those of `configs/planner/published.yaml`."""
    import yaml

    groups = yaml.safe_load((CONFIG_ROOT / "planner" / "published.yaml").read_text(encoding="utf-8"))
    return tuple(
        PublishedRun.model_validate({**run, "source": group["source"], "engine": group["engine"]})
        for group in groups
        for run in group["runs"]
    )
