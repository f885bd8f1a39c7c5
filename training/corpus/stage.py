"""What a stage of the pipeline is; the pipeline itself knows nothing of what stages do."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa


@dataclass(frozen=True, order=True)
class Shard:
    """A part of a dataset. `name` ("00012") is unique in the dataset and stays the same from stage to stage."""

    dataset: str
    name: str
    path: Path


def shard_item(shard: Shard, **more: Any) -> str:
    """A shard as an engine's item; `shard_of` reads it back."""
    return json.dumps({"dataset": shard.dataset, "name": shard.name, "path": str(shard.path), **more})


def shard_of(item: str) -> Shard:
    """The shard that an item names."""
    values = json.loads(item)
    return Shard(values["dataset"], values["name"], Path(values["path"]))


@dataclass
class Outcome:
    """What a stage made of one shard.

    `documents` (schema DOCUMENTS, in the shard's order) go on; `dropped` (schema DROPPED) are kept for people to look
    at; `counts` are added up over the shards, by dataset ("kept", "rule: too short", ...); `side` are further tables
    of the stage's own, by name, such as its cuts. All must depend on the shard and the stage's identity alone.
    """

    documents: pa.Table
    dropped: pa.Table
    counts: Mapping[str, int]
    side: Mapping[str, pa.Table] = field(default_factory=dict)


class Engine(Protocol):
    """Where work is done: the cores of this machine, or a Ray cluster."""

    @property
    def workers(self) -> int:
        """How many processes work at a time."""
        ...

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        """`function` of every item, in processes of their own, as they finish (in any order).

        The function is pickled; items and results are small strings (JSON): data travels through files.
        """
        ...

    def daft(self) -> Any:
        """The `daft` module with the right runner set, for work that needs shuffles (joins, group-bys)."""
        ...


@dataclass(frozen=True)
class Work:
    """What a stage is given to run: its input, where to write, and who does the work."""

    shards: Sequence[Shard]  # the previous stage's, sorted; of datasets in their order of priority
    folder: Path  # the stage's own; becomes visible as finished by the manifest that the pipeline writes
    engine: Engine
    report: Callable[[str, int, int], None]  # progress: (what, done, of how many)


class Stage(ABC):
    """One step. Instances are small, picklable and immutable: a name and a configuration."""

    name: ClassVar[str]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """JSON that decides the output, besides the input: settings, SHA-256 of files that it reads."""

    @abstractmethod
    def run(self, work: Work) -> None:
        """Do what is not done yet of the work. May be killed at any point and run again."""


class ShardStage(Stage):
    """A stage that turns each shard into one, on its own, after an optional look at all of them."""

    def prepare(self, work: Work, scratch: Path) -> None:
        """Compute into `scratch` what needs all shards; kept until the stage is finished, resumable like `run`."""

    @abstractmethod
    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """What does the work in a worker process; called once in each, so that models are loaded once."""

    def run(self, work: Work) -> None:
        """`prepare`, then every shard that has no result yet."""
        from training.corpus.shard_work import run_shards

        run_shards(self, work)
