"""A stage's shards, each done once: what is finished, what is left, and how a shard is committed.

A shard is finished when `records/DATASET/NAME.json` is there, with the key of what it was made from: the stage's
identity and the input's SHA-256. So a killed run goes on where it ended, and where the input grows by a dataset or by
files, only those shards are done that are new.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from foundation.files import read_json, write_json
from foundation.manifest import FileRecord, read_manifest
from training.corpus.documents import DOCUMENTS, DROPPED
from training.corpus.parquet import content_bytes, read_parquet, write_parquet
from training.corpus.stage import Outcome, Shard, ShardStage, Work, shard_item, shard_of

SCRATCH = "scratch"
RECORDS = "records"
DROPPED_FOLDER = "dropped"
SIDE = "side"


def run_shards(stage: ShardStage, work: Work) -> None:
    """`prepare`, then every shard that has no result of this stage and this input yet, the largest first."""
    scratch_key, keys = _keys(stage, work.shards)
    pending = [shard for shard in work.shards if not is_finished(work.folder, shard, keys[shard])]
    if not pending:
        return
    stage.prepare(work, _scratch(work.folder, scratch_key))
    pending.sort(key=lambda shard: -shard.path.stat().st_size)
    items = [shard_item(shard, key=keys[shard]) for shard in pending]
    rows = {shard: pq.read_metadata(shard.path).num_rows for shard in work.shards}
    total = sum(rows.values())
    done = total - sum(rows[shard] for shard in pending)
    work.report("documents", done, total)
    for result in work.engine.map(ShardWorker(stage, work.folder), items):
        done += json.loads(result)["documents"]
        work.report("documents", done, total)


@dataclass
class ShardWorker:
    """What `run_shards` sends to the worker processes: one shard read, worked on, written and committed."""

    stage: ShardStage
    folder: Path
    _apply: Callable[[Shard, pa.Table], Outcome] | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"stage": self.stage, "folder": self.folder, "_apply": None}

    def __call__(self, item: str) -> str:
        """Do the shard that `item` names."""
        values = json.loads(item)
        shard = shard_of(item)
        if self._apply is None:
            self._apply = self.stage.open(self.folder / SCRATCH)
        table = read_parquet(shard.path)
        started = time.perf_counter()
        outcome = self._apply(shard, table)
        seconds = time.perf_counter() - started
        commit(self.folder, shard, outcome, key=values["key"], documents_in=len(table), bytes_in=content_bytes(table))
        return json.dumps({"documents": len(table), "seconds": seconds})


def commit(
    folder: Path,
    shard: Shard,
    outcome: Outcome,
    *,
    key: str,
    documents_in: int,
    bytes_in: int,
    schema: pa.Schema = DOCUMENTS,
) -> None:
    """Write what a stage made of a shard, and last its record."""
    tables = {
        documents_path(Path(), shard): outcome.documents.select(schema.names).cast(schema),
        Path(DROPPED_FOLDER) / shard.dataset / f"{shard.name}.parquet": outcome.dropped.select(DROPPED.names).cast(
            DROPPED
        ),
    }
    for name, table in sorted(outcome.side.items()):
        tables[Path(SIDE) / name / shard.dataset / f"{shard.name}.parquet"] = table
    files = {path.as_posix(): write_parquet(table, folder / path) for path, table in tables.items()}
    record = {
        "key": key,
        "documents_in": documents_in,
        "documents_out": len(outcome.documents),
        "dropped": len(outcome.dropped),
        "bytes_in": bytes_in,
        "bytes_out": content_bytes(outcome.documents),
        "counts": dict(sorted(outcome.counts.items())),
        "files": {name: file.model_dump() for name, file in sorted(files.items())},
    }
    write_json(_record_path(folder, shard), record)


def pass_on(folder: Path, shard: Shard, before: Mapping[str, Any]) -> None:
    """Commit a shard that the stage leaves as it is: its file, linked where the file system can.

    `before` is the shard's record in the stage that it comes from.
    """
    name = documents_path(Path(), shard).as_posix()
    key = key_of("passed on", before["files"][name]["sha256"])
    if is_finished(folder, shard, key):
        return
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(shard.path, temporary)
    except OSError:
        shutil.copyfile(shard.path, temporary)
    temporary.replace(target)
    documents, size = before["documents_out"], before["bytes_out"]
    record = {
        "key": key,
        "documents_in": documents,
        "documents_out": documents,
        "dropped": 0,
        "bytes_in": size,
        "bytes_out": size,
        "counts": {"passed on": documents},
        "files": {name: before["files"][name]},
    }
    write_json(_record_path(folder, shard), record)


def documents_path(folder: Path, shard: Shard) -> Path:
    """Where a stage's `folder` keeps the documents of a shard."""
    return folder / shard.dataset / f"{shard.name}.parquet"


def _record_path(folder: Path, shard: Shard) -> Path:
    return folder / RECORDS / shard.dataset / f"{shard.name}.json"


def is_finished(folder: Path, shard: Shard, key: str) -> bool:
    """Whether the shard is committed under this key, and its files are there."""
    path = _record_path(folder, shard)
    if not path.is_file():
        return False
    record = read_json(path)
    return record["key"] == key and all(
        (folder / name).is_file() and (folder / name).stat().st_size == file["size"]
        for name, file in record["files"].items()
    )


def _keys(stage: ShardStage, shards: Sequence[Shard]) -> tuple[str, dict[Shard, str]]:
    """What decides `prepare`'s result, and each shard's; where the stage looks at all shards first, that is all."""
    hashes = _input_hashes(shards)
    whole = [hashes[shard] for shard in shards] if type(stage).prepare is not ShardStage.prepare else None
    identity = stage.identity()
    keys = {shard: key_of(stage.name, identity, hashes[shard], whole) for shard in shards}
    return key_of(stage.name, identity, whole), keys


def _scratch(folder: Path, key: str) -> Path:
    """The folder that `prepare` fills, emptied of what was computed for other input or settings."""
    scratch, owner = folder / SCRATCH, folder / SCRATCH / "key.json"
    if scratch.is_dir() and not (owner.is_file() and read_json(owner) == key):
        stale = folder / f".{SCRATCH}.stale"
        shutil.rmtree(stale, ignore_errors=True)
        scratch.rename(stale)
        shutil.rmtree(stale)
    scratch.mkdir(parents=True, exist_ok=True)
    write_json(owner, key)
    return scratch


def key_of(*parts: Any) -> str:
    """A digest of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _input_hashes(shards: Sequence[Shard]) -> dict[Shard, str]:
    """The SHA-256 of each shard's file, from its folder's manifest where there is one."""
    manifests = {folder: read_manifest(folder) for folder in {shard.path.parents[1] for shard in shards}}
    hashes = {}
    for shard in shards:
        manifest = manifests[shard.path.parents[1]]
        known = manifest.files.get(f"{shard.dataset}/{shard.path.name}") if manifest else None
        hashes[shard] = (known or FileRecord.of(shard.path)).sha256
    return hashes


def shard_records(folder: Path) -> Iterator[tuple[Shard, dict[str, Any]]]:
    """The finished shards of a stage's folder and their records, sorted."""
    for path in sorted((folder / RECORDS).glob("*/*.json")):
        shard = Shard(path.parent.name, path.stem, Path())
        yield Shard(shard.dataset, shard.name, documents_path(folder, shard)), read_json(path)


def remove_others(folder: Path, names: set[tuple[str, str]]) -> None:
    """Remove the shards, by (dataset, name), that are no longer part of the input."""
    for shard, record in list(shard_records(folder)):
        if (shard.dataset, shard.name) not in names:
            _record_path(folder, shard).unlink()
            for name in record["files"]:
                (folder / name).unlink(missing_ok=True)


def summarise(folder: Path) -> dict[str, dict[str, Any]]:
    """Records added up, by dataset."""
    datasets: dict[str, dict[str, Any]] = {}
    sums = ("documents_in", "documents_out", "dropped", "bytes_in", "bytes_out")
    for shard, record in shard_records(folder):
        total = datasets.setdefault(shard.dataset, {"shards": 0, **dict.fromkeys(sums, 0), "counts": {}})
        total["shards"] += 1
        for name in sums:
            total[name] += record[name]
        for name, count in record["counts"].items():
            total["counts"][name] = total["counts"].get(name, 0) + count
    for total in datasets.values():
        total["counts"] = dict(sorted(total["counts"].items()))
    return datasets
