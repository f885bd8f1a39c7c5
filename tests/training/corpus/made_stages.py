"""Small stages, one of each kind, that tests of the pipeline run instead of the real ones."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from foundation.errors import UserError
from foundation.files import read_json, write_json, write_text
from training.corpus.config import CorpusConfig
from training.corpus.documents import DOCUMENTS, DROPPED
from training.corpus.parquet import read_parquet
from training.corpus.stage import Outcome, Shard, ShardStage, Stage, Work
from training.corpus.tables import Sieve

HERE = "tests.training.corpus.made_stages"
STAGES = {
    "sources": "training.corpus.sources:Sources",
    "clean": f"{HERE}:Upper",
    "deduplicate": f"{HERE}:Census",
    "tokenise": f"{HERE}:Listing",
}


class Upper(ShardStage):
    """Upper-cases texts; drops those with the word `drop`. Of its own shard alone."""

    name = "clean"

    def __init__(self, config: CorpusConfig) -> None:
        self.least = config.clean.min_characters

    def identity(self) -> dict[str, Any]:
        return {"least": self.least}

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        return self.apply

    def apply(self, shard: Shard, table: pa.Table) -> Outcome:
        sieve = Sieve()
        for row in table.to_pylist():
            if "refuse" in row["text"]:
                raise UserError(f"{row['id']}: refused")
            if "fail" in row["text"]:
                raise ValueError(f"{row['id']}: a fault of the program")
            if "die" in row["text"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if "drop" in row["text"]:
                sieve.drop(row, "drop", text=row["text"])
            else:
                sieve.keep(row, row["text"].upper())
        return sieve.outcome({"lengths": table.select(["id"])})


class Census(ShardStage):
    """Appends to each text how many documents there are in all, which is counted in `prepare`."""

    name = "deduplicate"

    def __init__(self, config: CorpusConfig) -> None:
        self.order = [dataset.name for dataset in config.datasets]

    def identity(self) -> dict[str, Any]:
        return {"order": self.order}

    def prepare(self, work: Work, scratch: Path) -> None:
        targets = {shard: scratch / shard.dataset / f"{shard.name}.json" for shard in work.shards}
        items = [f"{shard.path}\n{target}" for shard, target in targets.items() if not target.is_file()]
        list(work.engine.map(count_documents, items))
        write_json(scratch / "count.json", sum(read_json(target) for target in targets.values()))

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        count = json.loads((scratch / "count.json").read_text())

        def apply(shard: Shard, table: pa.Table) -> Outcome:
            rows = [{**row, "text": f"{row['text']} {count}"} for row in table.to_pylist()]
            return Outcome(pa.Table.from_pylist(rows, schema=DOCUMENTS), DROPPED.empty_table(), {"kept": len(rows)})

        return apply


def count_documents(item: str) -> str:
    """The rows of one file, written to another."""
    path, target = map(Path, item.split("\n"))
    write_json(target, len(read_parquet(path, ["id"])))
    return ""


class Listing(Stage):
    """All texts in one file."""

    name = "tokenise"

    def __init__(self, config: CorpusConfig) -> None:
        pass

    def identity(self) -> dict[str, Any]:
        return {}

    def run(self, work: Work) -> None:
        texts = [text for shard in work.shards for text in read_parquet(shard.path, ["text"])["text"].to_pylist()]
        write_text(work.folder / "texts.txt", "\n".join(texts))


class Counting:
    """The engine of a test's own process that remembers what it was given to do."""

    workers = 1

    def __init__(self, *, die_after: int | None = None) -> None:
        self.items: list[str] = []
        self._left = die_after

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        for item in reversed(items):
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            self.items.append(item)
            yield function(item)

    def daft(self) -> Any:
        raise NotImplementedError
