"""Stage 1: every document of every dataset, from whatever it lies in, with its id, source, URL and date."""

import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from foundation.errors import UserError, one_line
from foundation.files import read_json, write_json
from training.corpus.config import CorpusConfig, DatasetConfig
from training.corpus.documents import DROPPED, RAW
from training.corpus.parquet import read_parquet
from training.corpus.readers.files import InputFile, list_files
from training.corpus.readers.records import Problem, Record
from training.corpus.readers.tables import read_html_file, read_json_lines, read_parquet_rows, read_text_file
from training.corpus.readers.warc import read_warc
from training.corpus.shard_work import DROPPED_FOLDER, SCRATCH, commit, is_finished, key_of, remove_others, summarise
from training.corpus.stage import Outcome, Shard, Stage, Work

_READERS: dict[str, Callable[[InputFile, DatasetConfig], Iterator[Record | Problem]]] = {
    "warc": read_warc,
    "jsonl": read_json_lines,
    "parquet": read_parquet_rows,
    "text": read_text_file,
    "html": read_html_file,
}
# What readers and decompressors raise for a file that is not what its name says, or is cut short.
_DAMAGE = (EOFError, ValueError, zlib.error, lzma.LZMAError, pa.ArrowException, RuntimeError)
# What of a dataset's configuration decides how its files are read.
_READING = ("format", "text_field", "html_field", "url_field", "date_field", "id_field")


@dataclass(frozen=True)
class Group:
    """Files of one dataset that one worker reads: a large one, or several small ones."""

    dataset: DatasetConfig
    number: int
    files: tuple[InputFile, ...]
    shard_bytes: int

    @property
    def key(self) -> str:
        """What decides the documents that it gives, but for the files' content."""
        settings = {name: getattr(self.dataset, name) for name in _READING}
        return key_of(settings, self.shard_bytes, [(file.name, file.size) for file in self.files])

    @property
    def stamp(self) -> str:
        """`key`, and when the files were changed: kept out of what is the same in every run."""
        return key_of(self.key, [file.stamp for file in self.files])

    @property
    def size(self) -> int:
        """Bytes, as stored."""
        return sum(file.size for file in self.files)

    def shard(self, part: int) -> Shard:
        """The place of one of the shards that it is written to."""
        return Shard(self.dataset.name, f"{self.number:05d}-{part:04d}", Path())


class Sources(Stage):
    """Reads WARC, JSON Lines, Parquet, plain text and HTML files into shards of about `shard_megabytes`."""

    name: ClassVar[str] = "sources"

    def __init__(self, config: CorpusConfig) -> None:
        self._config = config
        self._groups: list[Group] | None = None

    def identity(self) -> dict[str, Any]:
        """By dataset how it is read, and its files' names and sizes."""
        datasets = {
            dataset.name: {
                "read": {name: getattr(dataset, name) for name in _READING},
                "files": key_of(*((f.name, f.size) for group in self.groups() for f in self._of(group, dataset))),
            }
            for dataset in self._config.datasets
        }
        return {"shard_megabytes": self._config.shard_megabytes, **{f"dataset {k}": v for k, v in datasets.items()}}

    def stamps(self) -> str:
        """A digest of the files' dates of change (or their marks in object storage)."""
        return key_of(*(group.stamp for group in self.groups()))

    def groups(self) -> list[Group]:
        """All files, in portions of work. Raises UserError for a path that is not there."""
        if self._groups is None:
            self._groups = [group for dataset in self._config.datasets for group in self._grouped(dataset)]
        return self._groups

    def run(self, work: Work) -> None:
        """Read what is not read yet. Raises UserError for a dataset without a single document."""
        groups = self.groups()
        pending = [group for group in groups if _parts(work.folder, group) is None]
        total = sum(group.size for group in groups)
        done = total - sum(group.size for group in pending)
        work.report("bytes", done, total)
        by_key = {_item(group): group for group in sorted(pending, key=lambda group: -group.size)}
        for result in work.engine.map(GroupReader(work.folder, tuple(by_key.values())), list(by_key)):
            done += by_key[result].size
            work.report("bytes", done, total)
        names = {
            (group.dataset.name, group.shard(part).name)
            for group in groups
            for part in range(_parts(work.folder, group) or 0)
        }
        remove_others(work.folder, names)
        _refuse_empty(work.folder, self._config.datasets)

    def _of(self, group: Group, dataset: DatasetConfig) -> Sequence[InputFile]:
        return group.files if group.dataset.name == dataset.name else ()

    def _grouped(self, dataset: DatasetConfig) -> Iterator[Group]:
        shard_bytes = self._config.shard_megabytes * 1_000_000
        files: list[InputFile] = []
        number = size = 0
        for file in list_files(dataset):
            if files and size + file.size > shard_bytes:
                yield Group(dataset, number, tuple(files), shard_bytes)
                files, number, size = [], number + 1, 0
            files.append(file)
            size += file.size
        yield Group(dataset, number, tuple(files), shard_bytes)


def _item(group: Group) -> str:
    return f"{group.dataset.name}/{group.number:05d}"


@dataclass(frozen=True)
class GroupReader:
    """What worker processes do: read a group and write its shards, and last how many they are."""

    folder: Path
    groups: tuple[Group, ...]

    def __call__(self, item: str) -> str:
        """Read the group that `item` names."""
        group = next(group for group in self.groups if _item(group) == item)
        part = -1
        for part, rows in enumerate(_portions(group)):
            outcome = Outcome(_table(rows.documents, RAW), _table(rows.dropped, DROPPED), rows.counts)
            read = sum(rows.counts.values())
            shard, key = group.shard(part), group.key
            commit(self.folder, shard, outcome, key=key, documents_in=read, bytes_in=rows.size, schema=RAW)
        write_json(_parts_path(self.folder, group), {"stamp": group.stamp, "parts": part + 1})
        return item


@dataclass
class _Rows:
    """What goes into one shard."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    size: int = 0


def _portions(group: Group) -> Iterator[_Rows]:
    """The group's documents by shards; one at least."""
    rows = _Rows()
    for file in group.files:
        ids: set[str] = set()
        for record in read_records(file, group.dataset):
            _add(rows, record, file, group.dataset, ids)
            if rows.size >= group.shard_bytes:
                yield rows
                rows = _Rows()
    yield rows


def read_records(file: InputFile, dataset: DatasetConfig) -> Iterator[Record | Problem]:
    """The file's records, and a problem where it breaks off."""
    try:
        yield from _READERS[file.format](file, dataset)
    except OSError as error:
        # Those of decompressors carry no number; those of disks and networks do, and are no fault of the file.
        if error.errno is not None:
            raise UserError(f"cannot read {file.path}: {one_line(error)}") from None
        yield Problem("", "damaged file", one_line(error))
    except _DAMAGE as error:
        yield Problem("", "damaged file", one_line(error))


def _add(rows: _Rows, record: Record | Problem, file: InputFile, dataset: DatasetConfig, ids: set[str]) -> None:
    place = "/".join((dataset.name, file.name, *([record.place] if record.place else [])))
    rule = f"rule: {record.rule}" if isinstance(record, Problem) else "kept"
    rows.counts[rule] = rows.counts.get(rule, 0) + 1
    if isinstance(record, Problem):
        if record.detail is not None:
            detail = f"{file.name}: {record.detail}"
            rows.dropped.append({"id": place, "rule": record.rule, "detail": detail, "text": None})
        return
    if dataset.id_field is not None:
        place = _unique(place, ids)
    rows.documents.append(
        {
            "id": place,
            "source": file.name,
            "url": record.url,
            "date": record.date,
            "html": record.html,
            "text": record.text,
        }
    )
    rows.size += len(record.html) if record.html is not None else len((record.text or "").encode())


def _unique(place: str, ids: set[str]) -> str:
    """The id, with a number where a file has it twice."""
    name, copies = place, 1
    while name in ids:
        copies += 1
        name = f"{place}~{copies}"
    ids.add(name)
    return name


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _parts_path(folder: Path, group: Group) -> Path:
    return folder / SCRATCH / group.dataset.name / f"{group.number:05d}.json"


def _parts(folder: Path, group: Group) -> int | None:
    """How many shards the group was written to; None when it is not done."""
    path = _parts_path(folder, group)
    if not path.is_file():
        return None
    made = read_json(path)
    if made["stamp"] != group.stamp:
        return None
    finished = all(is_finished(folder, group.shard(part), group.key) for part in range(made["parts"]))
    return int(made["parts"]) if finished else None


def _refuse_empty(folder: Path, datasets: Sequence[DatasetConfig]) -> None:
    totals = summarise(folder)
    for dataset in datasets:
        if totals[dataset.name]["documents_out"] == 0:
            counts = ", ".join(f"{count} {rule}" for rule, count in totals[dataset.name]["counts"].items()) or "nothing"
            raise UserError(
                f"dataset {dataset.name}: no document in {', '.join(dataset.paths)}: {counts}{_first(folder, dataset)}"
            )


def _first(folder: Path, dataset: DatasetConfig) -> str:
    for path in sorted((folder / DROPPED_FOLDER / dataset.name).glob("*.parquet")):
        for detail in read_parquet(path, ["detail"])["detail"].to_pylist():
            return f"; the first: {detail}"
    return ""
