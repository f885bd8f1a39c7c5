"""Stages run on tables that a test makes, in its own process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from training.corpus.config import CorpusConfig
from training.corpus.documents import DOCUMENTS, RAW
from training.corpus.parquet import write_parquet
from training.corpus.stage import Outcome, Shard, Work

SHARD = Shard("set", "00000", Path())


class ThisProcess:
    """An engine without engine."""

    workers = 1

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        """One after the other, from the last on: the order must not matter."""
        return map(function, reversed(items))

    def daft(self) -> Any:
        """There is none."""
        raise NotImplementedError


def corpus_config(datasets: Sequence[str] = ("set",), **sections: Any) -> CorpusConfig:
    """A configuration whose sources nobody reads."""
    listed = [{"name": name, "paths": ["nowhere"]} for name in datasets]
    return CorpusConfig.model_validate({"out": "nowhere", "datasets": listed, **sections})


def raw(*rows: Mapping[str, Any]) -> pa.Table:
    """Rows of the schema RAW; ids are numbered where there are none."""
    absent = {"source": "made", "url": None, "date": None, "html": None, "text": None}
    return pa.Table.from_pylist([{"id": f"set/{n}", **absent, **row} for n, row in enumerate(rows)], schema=RAW)


def documents(*texts: str, dataset: str = "set") -> pa.Table:
    """Documents numbered from 0 on."""
    rows = [
        {"id": f"{dataset}/{n}", "source": "made", "url": None, "date": None, "text": text}
        for n, text in enumerate(texts)
    ]
    return pa.Table.from_pylist(rows, schema=DOCUMENTS)


def write_shards(folder: Path, dataset: str, table: pa.Table, count: int) -> list[Shard]:
    """The rows cut into `count` shards."""
    size = -(-len(table) // count)
    shards = [Shard(dataset, f"{n:05}", folder / dataset / f"{n:05}.parquet") for n in range(count)]
    for number, shard in enumerate(shards):
        write_parquet(table.slice(number * size, size), shard.path)
    return shards


def work_on(shards: Sequence[Shard], folder: Path) -> Work:
    """What `prepare` is given."""
    return Work(shards, folder, ThisProcess(), lambda what, done, total: None)


def texts(outcome: Outcome) -> list[str]:
    """Of the documents that go on."""
    return list(outcome.documents["text"].to_pylist())


def reasons(outcome: Outcome) -> list[tuple[str, str, str | None]]:
    """Of the documents that were dropped: id, rule and detail."""
    return [(row["id"], row["rule"], row["detail"]) for row in outcome.dropped.to_pylist()]
