"""The first stage: shards of documents with ids that do not depend on how they are cut."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.training.corpus.made_stages import Counting
from tests.training.corpus.source_files import write_lines
from training.corpus.config import CorpusConfig
from training.corpus.documents import RAW
from training.corpus.parquet import content_bytes, read_parquet, write_parquet
from training.corpus.shard_work import shard_records, summarise
from training.corpus.sources import Sources
from training.corpus.stage import Work


def read(out: Path, *paths: Path, megabytes: int = 1, engine: Counting | None = None, **dataset: Any) -> list[pa.Table]:
    """The shards that the stage writes, in order."""
    listed = [{"name": "set", "paths": [str(path) for path in paths], **dataset}]
    config = CorpusConfig.model_validate({"out": str(out), "shard_megabytes": megabytes, "datasets": listed})
    Sources(config).run(Work([], out, engine or Counting(), lambda what, done, total: None))
    return [read_parquet(shard.path) for shard, _ in shard_records(out)]


def test_a_large_file_becomes_several_shards_and_small_ones_share_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "large.jsonl", [{"text": f"{row}{'x' * 400_000}"} for row in range(7)])
    for number in range(5):
        write_lines(tmp_path / "in" / f"small{number}.jsonl", [{"text": f"small {number}"}])
    shards = read(tmp_path / "out", tmp_path / "in")
    assert [len(shard) for shard in shards] == [3, 3, 1, 5]
    assert all(shard.schema == RAW for shard in shards)
    assert shards[-1]["source"].to_pylist() == [f"small{number}.jsonl" for number in range(5)]


def test_documents_do_not_depend_on_the_shards_size(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": f"{row}{'x' * 400_000}", "url": "u"} for row in range(7)])
    small = pa.concat_tables(read(tmp_path / "small", tmp_path / "in"))
    large = pa.concat_tables(read(tmp_path / "large", tmp_path / "in", megabytes=64))
    assert small == large
    assert small["id"].to_pylist() == [f"set/a.jsonl/{row}" for row in range(1, 8)]


def test_ids_of_the_records_own_are_made_unique(tmp_path: Path) -> None:
    rows = [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}, {"text": "c"}, {"text": "d", "id": 5}]
    (shard,) = read(tmp_path / "out", write_lines(tmp_path / "a.jsonl", rows), id_field="id")
    assert shard["id"].to_pylist() == ["set/a.jsonl/x", "set/a.jsonl/x~2", "set/a.jsonl/5"]


def test_what_could_not_be_read_is_counted_and_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}, "{", {"text": "c"}])
    read(tmp_path / "out", path)
    assert summarise(tmp_path / "out")["set"] == {
        "shards": 1,
        "documents_in": 3,
        "documents_out": 2,
        "dropped": 1,
        "bytes_in": 2,
        "bytes_out": 2,
        "counts": {"kept": 2, "rule: bad record": 1},
    }
    (dropped,) = read_parquet(tmp_path / "out" / "dropped" / "set" / "00000-0000.parquet").to_pylist()
    assert dropped["id"] == "set/a.jsonl/2"
    assert dropped["rule"] == "bad record"
    assert dropped["detail"].startswith("a.jsonl: line 2: not valid JSON")


def test_what_is_read_is_not_read_again(tmp_path: Path) -> None:
    for number in range(3):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [{"text": "x" * 600_000}])
    with pytest.raises(KeyboardInterrupt):
        read(tmp_path / "out", tmp_path / "in", engine=Counting(die_after=2))
    engine = Counting()
    assert len(read(tmp_path / "out", tmp_path / "in", engine=engine)) == 3
    assert engine.items == ["set/00000"]


def test_parquet_depends_on_the_rows_alone(tmp_path: Path) -> None:
    rows = [{"id": str(row), "source": "s", "text": f"text {row}"} for row in range(20_000)]
    table = pa.Table.from_pylist(rows, schema=RAW)
    pieces = pa.concat_tables([table.slice(start, 777) for start in range(0, 20_000, 777)])
    assert write_parquet(table, tmp_path / "a.parquet") == write_parquet(pieces, tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert content_bytes(read_parquet(tmp_path / "b.parquet")) == sum(len(row["text"]) for row in rows)
