"""Examples for the classifier: lines of words, drawn by a hash of seed and document, so that sharding is no matter."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foundation.errors import UserError
from training.data.sources import open_source

_TOKEN = re.compile(r"\w+|[^\w\s]")
_SCHEMA = pa.schema([("key", pa.uint64()), ("good", pa.bool_()), ("line", pa.large_string())])
_BATCH = 512
_RANGE = 2**64
# Examples are sorted in parts of about this many bytes of text, taken to be so many times the size of their files.
_MEMORY_BYTES = 1 << 29
_PACKED_RATIO = 4
# Folders of a stage that hold no documents that went on.
_ASIDE = {"dropped", "side", "scratch", "records"}


def unit_hash(*parts: object) -> float:
    """A number in [0, 1) that the parts alone decide."""
    return _hash(*parts) / _RANGE


def words_line(text: str, max_words: int) -> str:
    """The first words and signs of a text as the classifier reads them: lower-case, in one line."""
    return " ".join(match.group() for match in islice(_TOKEN.finditer(text.lower()), max_words))


@dataclass(frozen=True)
class Origin:
    """A file of documents: of the positives or not. `dataset` and `name` tell it from all others."""

    dataset: str
    name: str
    path: str
    good: bool

    def rows(self) -> int | None:
        """How many documents there are, where that costs nothing to know."""
        return int(pq.read_metadata(self.path).num_rows) if self.path.endswith(".parquet") else None


def find_origins(source: str, *, good: bool) -> list[Origin]:
    """The files that a path stands for: Parquet (a stage's folder too), else what `mtnlg data prepare` reads.

    Raises UserError when there is nothing to read.
    """
    path = Path(source)
    if not path.exists():
        raise UserError(f"no file or folder at {source}")
    found = [path] if path.suffix == ".parquet" else sorted(path.rglob("*.parquet")) if path.is_dir() else []
    files = [file for file in found if not _ASIDE.intersection(file.relative_to(path).parts)]
    if not files:
        files = list(open_source(source).files)
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"no documents at {source}: expected a file or folder of Parquet, JSON Lines or text")
    # Named by their place inside the folder: moving it changes no draw.
    names = [file.relative_to(path).as_posix() if file != path else file.name for file in files]
    return [
        Origin(path.resolve().name, name, str(file.absolute()), good) for name, file in zip(names, files, strict=True)
    ]


@dataclass(frozen=True)
class Sampler:
    """Writes the drawn examples of one file into `folder`: what an engine maps over `requests`. Resumable."""

    folder: Path
    max_words: int
    seed: int

    def __call__(self, request: str) -> str:
        """`request` is one of `requests`; returns the name of the Parquet file of examples."""
        asked = json.loads(request)
        origin, rate = Origin(**asked["origin"]), asked["rate"]
        name = hashlib.blake2b(request.encode(), digest_size=12).hexdigest() + ".parquet"
        if not (self.folder / name).is_file():
            temporary = self.folder / f".{name}.tmp"
            # By rows of a batch: a file may hold more text than memory.
            with pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer:
                for table in self._tables(origin, rate):
                    writer.write_table(table)
            temporary.replace(self.folder / name)
        return name

    def _tables(self, origin: Origin, rate: float) -> Iterator[pa.Table]:
        documents = _documents(origin)
        while batch := list(islice(documents, _BATCH)):
            keys = [_hash(self.seed, "example", identity) for identity, _ in batch]
            rows = [
                {"key": key, "good": origin.good, "line": words_line(text, self.max_words)}
                for key, (_, text) in zip(keys, batch, strict=True)
                if key < rate * _RANGE
            ]
            yield pa.Table.from_pylist(rows, schema=_SCHEMA)


def requests(origins: Sequence[Origin], max_examples: int) -> list[str]:
    """What `Sampler` is asked for: of each kind somewhat more than can be used, where the numbers of rows are known."""
    kinds = {good: [origin for origin in origins if origin.good == good] for good in (True, False)}
    totals = {good: _total(kind) for good, kind in kinds.items()}
    usable = min([max_examples, *(total for total in totals.values() if total is not None)])
    asked = []
    for good, kind in kinds.items():
        # Ten percent and a few more than needed: the number drawn is random, the surplus is cut off later.
        rate = min(1.0, (1.1 * usable + 100) / total) if (total := totals[good]) else 1.0
        asked += [json.dumps({"origin": asdict(origin), "rate": rate}, sort_keys=True) for origin in kind]
    return asked


def _total(origins: Sequence[Origin]) -> int | None:
    counts = [origin.rows() for origin in origins]
    return None if None in counts else sum(count or 0 for count in counts)


def _documents(origin: Origin) -> Iterator[tuple[str, str]]:
    if origin.path.endswith(".parquet"):
        yield from _parquet_documents(origin)
    else:
        for number, text in enumerate(open_source(origin.path).documents()):
            yield f"{origin.name}/{number}", text


def _parquet_documents(origin: Origin) -> Iterator[tuple[str, str]]:
    with pq.ParquetFile(origin.path) as file:
        names = set(file.schema_arrow.names)
        if "text" not in names:
            raise UserError(f"{origin.path} has no column called text")
        columns = [name for name in ("id", "text") if name in names]
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
            for row in batch.to_pylist():
                if row["text"]:
                    yield str(row.get("id", f"{origin.name}/{number}")), row["text"]
                number += 1


class Examples:
    """The drawn examples of several files, as many good ones as others: those of the lowest keys, in their order."""

    def __init__(self, files: Iterable[Path], max_examples: int) -> None:
        self._files = sorted(set(files))
        tables = [pq.read_table(file, columns=["key", "good"]) for file in self._files]
        table = pa.concat_tables([_SCHEMA.empty_table().select(["key", "good"]), *tables])
        keys, good = table["key"].to_numpy(), table["good"].to_numpy()
        sides = {side: np.sort(keys[good == side]) for side in (True, False)}
        self.positives, self.negatives = len(sides[True]), len(sides[False])
        self.count = min(self.positives, self.negatives, max_examples)  # of each
        # One past the highest key taken, by kind.
        self._ends = {side: int(found[self.count - 1]) + 1 if self.count else 0 for side, found in sides.items()}

    def __iter__(self) -> Iterator[tuple[int, bool, str]]:
        """(key, whether it is a positive, line), by rising key; a part of the range of keys is in memory at a time."""
        size = sum(file.stat().st_size for file in self._files)
        edges = np.linspace(0, max(self._ends.values()), 2 + int(_PACKED_RATIO * size / _MEMORY_BYTES))
        for low, high in pairwise([*(int(edge) for edge in edges[:-1]), max(self._ends.values())]):
            within = (pc.field("key") >= pa.scalar(low, pa.uint64())) & (pc.field("key") < pa.scalar(high, pa.uint64()))
            tables = [pq.read_table(file, filters=within, schema=_SCHEMA) for file in self._files]
            # By all columns: a document may be in twice, among the positives and the others.
            for row in pa.concat_tables(tables).sort_by([(name, "ascending") for name in _SCHEMA.names]).to_pylist():
                if row["key"] < self._ends[row["good"]]:
                    yield row["key"], row["good"], row["line"]


def _hash(*parts: object) -> int:
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
