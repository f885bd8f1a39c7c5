"""The planned time of a run's steps, for beside the measured one."""

from training.config import TrainConfig
from training.planner.cluster import load_cluster
from training.planner.options import PlanOptions
from training.planner.planned import Planned


class Prediction:
    """Planned seconds a step by its batch size, where the configuration names a cluster whose times are known."""

    def __init__(self, config: TrainConfig) -> None:
        name = config.training.cluster
        cluster = None if name is None else load_cluster(name, None, None)
        self._config, self._cluster = config, cluster if cluster is not None and cluster.timed else None
        self._planned: dict[int, float] = {}

    def beside(self, seconds: float, batch_size: int) -> dict[str, float]:
        """Under the names of metrics.jsonl: what a step took, and what was planned; nothing without a cluster."""
        if self._cluster is None:
            return {}
        if batch_size not in self._planned:
            training = self._config.training.model_copy(update={"global_batch_size": batch_size})
            config = self._config.model_copy(update={"training": training})
            self._planned[batch_size] = Planned(config, PlanOptions(), self._cluster).iteration.seconds
        return {"step_seconds": seconds, "planned_seconds": self._planned[batch_size]}
