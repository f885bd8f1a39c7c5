"""What `mtnlg plan` was asked, as a run: a model or training configuration with the changes of the command line."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from foundation.config import CONFIG_ROOT, load_config, named_config, read_yaml
from foundation.errors import UserError
from training.config import TrainConfig
from training.model.config import ModelConfig
from training.parallel.layout import Layout
from training.planner.cluster import Cluster
from training.planner.options import PlanOptions
from training.planner.planned import Planned
from training.planner.software import EngineName

# The keys of --what-if and --sweep, by the field that each sets.
_KEYS = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "batch": "batch",
    "micro_batch": "micro_batch",
    "recompute": "recompute",
    "sequence_parallel": "sequence_parallel",
    "virtual_stages": "virtual_stages",
    "engine": "engine",
    "zero": "zero",
    "nodes": "nodes",
}


@dataclass(frozen=True)
class Request:
    """A run in the few values that a plan varies. `data` None: as many replicas as fill the nodes."""

    base: TrainConfig
    cluster: Cluster
    tensor: int
    pipeline: int
    data: int | None
    batch: int
    micro_batch: int = 1
    recompute: str = "full"
    sequence_parallel: bool = False
    virtual_stages: int = 1
    engine: str = "deepspeed"
    zero: int | None = None
    nodes: int | None = None

    def changed(self, change: str) -> "Request":
        """With a change such as `tp=4`; where that leaves devices over or short, the replicas follow.

        Raises UserError when there is no such key, or the value is not of its kind.
        """
        key, separator, text = change.partition("=")
        if not separator or key not in _KEYS:
            raise UserError(f"{change!r} is not of the form key=value with one of the keys {', '.join(_KEYS)}")
        field = _KEYS[key]
        value = yaml.safe_load(text)
        whole = field not in ("recompute", "engine", "sequence_parallel")
        if whole and (not isinstance(value, int) or isinstance(value, bool)):
            raise UserError(f"{change!r}: {key} is a whole number")
        updates: dict[str, Any] = {field: value}
        if field in ("tensor", "pipeline", "nodes") and self.data is not None:
            updates["data"] = None
            if self.nodes is None and field != "nodes":
                updates["nodes"] = self.cluster.nodes_of(self._layout(self.data))
        return replace(self, **updates)

    def planned(self) -> Planned:
        """The run. Raises UserError when it cannot be."""
        names = [name.value for name in EngineName]
        if self.engine not in names:
            raise UserError(f"no engine {self.engine!r}; there are: {', '.join(names)}")
        training = {
            "train_tokens": self.base.training.train_tokens,
            "precision": self.base.training.precision,
            "global_batch_size": self.batch,
            "micro_batch_size": self.micro_batch,
            "recomputation": self.recompute,
        }
        values = {**self.base.model_dump(mode="json"), "training": training, "layout": self._layout(self._replicas())}
        try:
            config = TrainConfig.model_validate(values)
            options = PlanOptions(
                engine=EngineName(self.engine), virtual_stages=self.virtual_stages, zero_stage=self.zero
            )
        except ValueError as error:
            raise UserError(" ".join(str(error).split())) from None
        cluster = self.cluster if self.nodes is None else self.cluster.model_copy(update={"nodes": self.nodes})
        planned = Planned(config, options, cluster)
        planned.check()
        return planned

    def _layout(self, replicas: int) -> Layout:
        return Layout(
            tensor_parallel_size=self.tensor,
            pipeline_parallel_size=self.pipeline,
            data_parallel_size=replicas,
            sequence_parallel=self.sequence_parallel,
        )

    def _replicas(self) -> int:
        if self.data is not None:
            return self.data
        if self.nodes is None:
            return 1
        devices, each = self.nodes * self.cluster.gpus_per_node, self.tensor * self.pipeline
        if devices < each:
            raise UserError(f"{self.nodes} nodes have {devices} GPUs, and one replica takes {each}")
        return devices // each


def request_of(
    base: TrainConfig, cluster: Cluster, layout: str | None, *, search: bool, **said: int | str | bool | None
) -> Request:
    """The run that is meant: what was `said` (fields of Request; None was not), the rest as the configuration has it.

    Raises UserError where neither says how large a batch is, or (except for a search) how the model is laid out.
    """
    alone, own = is_model_alone(base), base.layout
    if said.get("batch") is None and alone:
        raise UserError("--batch: how many samples an iteration? MT-NLG's had 1920")
    if layout is None and alone and not search:
        raise UserError("give --layout T,P,D, or --search to find one")
    tensor, pipeline, data = (
        parse_layout(layout)
        if layout
        else (
            own.tensor_parallel_size,
            own.pipeline_parallel_size,
            None if said.get("nodes") else own.data_parallel_size,
        )
    )
    values: dict[str, Any] = {
        "batch": base.training.global_batch_size,
        "micro_batch": base.training.micro_batch_size,
        "recompute": base.training.recomputation,
        "sequence_parallel": own.sequence_parallel,
        "engine": cluster.engine.value if alone else EngineName.mtnlg.value,
    }
    values |= {name: value for name, value in said.items() if value is not None}
    return Request(base=base, cluster=cluster, tensor=tensor, pipeline=pipeline, data=data, **values)


def is_model_alone(base: TrainConfig) -> bool:
    """Whether `load_model` found a model, and no training configuration around it."""
    return base.training.train_tokens == 1


def load_model(name: str) -> TrainConfig:
    """The training configuration at `name`, or one around the model of that name or file.

    A model alone gets MT-NLG's recomputation and micro-batch, and one token to train. Raises UserError when there is
    neither.
    """
    path = named_config("model", name)
    if not path.is_file() and Path(name).suffix != ".yaml":
        path = named_config("train", name)
    if not path.is_file():
        known = sorted(found.stem for folder in ("model", "train") for found in (CONFIG_ROOT / folder).glob("*.yaml"))
        raise UserError(f"no model or training configuration {name!r}; there are: {', '.join(dict.fromkeys(known))}")
    if "training" in read_yaml(path):
        return load_config(TrainConfig, path)
    return TrainConfig.model_validate(
        {
            "model": load_config(ModelConfig, path),
            "data": {"path": "unused"},
            "training": {"train_tokens": 1, "global_batch_size": 1, "recomputation": "full"},
            "out": "unused",
        }
    )


def parse_layout(text: str) -> tuple[int, int, int | None]:
    """`8,35,8` as tensor, pipeline and data; the last may be left out. Raises UserError when it is no such thing."""
    parts = text.split(",")
    if len(parts) not in (2, 3) or not all(part.strip().isdigit() and int(part) for part in parts):
        raise UserError(
            f"--layout {text}: expected tensor,pipeline,data, such as 8,35,8; without data the nodes decide"
        )
    tensor, pipeline, *data = (int(part) for part in parts)
    return tensor, pipeline, data[0] if data else None


def parse_tokens(text: str) -> int:
    """`270B` as 270 * 10^9; also k, M and T. Raises UserError when it is no number."""
    scale = {"k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}.get(text[-1:], 0)
    try:
        tokens = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        raise UserError(f"--tokens {text}: expected a number such as 270B") from None
    if tokens <= 0:
        raise UserError(f"--tokens {text}: expected more than none")
    return round(tokens)
