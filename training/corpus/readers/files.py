"""Input files: found in folders, by patterns, here or in object storage, and opened without their compression."""

import contextlib
import difflib
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from foundation.errors import UserError, one_line
from training.corpus.config import DatasetConfig

_FORMATS = {
    "warc": (".warc", ".wet"),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet",),
    "html": (".html", ".htm", ".xhtml"),
    "text": (".txt", ".md", ".rst", ".py"),
}
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_BUFFER = 1 << 16
# What file systems call the mark that changes with a file's content.
_STAMPS = ("ETag", "etag", "md5Hash", "md5", "mtime", "LastModified", "last_modified", "updated")


@dataclass(frozen=True)
class InputFile:
    """A file of a dataset. `name` says where it lies in the dataset, wherever the dataset lies."""

    path: str
    name: str
    format: str
    size: int
    stamp: str  # changes when the file does


def list_files(dataset: DatasetConfig) -> list[InputFile]:
    """The dataset's files, sorted by name. Raises UserError for a path that is not there or holds nothing readable."""
    found: dict[str, InputFile] = {}
    for path in dataset.paths:
        files = sorted(_files_at(path, dataset), key=lambda file: file.name)
        if not files:
            kinds = ", ".join(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
            raise UserError(
                f"dataset {dataset.name}: {path} holds no file to read; expected {kinds}, each also compressed "
                f"({', '.join(_COMPRESSIONS)}); or say its format"
            )
        for file in files:
            name, copies = file.name, 1
            while name in found:
                copies += 1
                name = f"{file.name}~{copies}"
            found[name] = InputFile(file.path, name, file.format, file.size, file.stamp)
    return sorted(found.values(), key=lambda file: file.name)


@contextlib.contextmanager
def open_file(file: InputFile, *, decompress: bool = True) -> Iterator[IO[bytes]]:
    """The file's bytes. Raises UserError when it cannot be opened."""
    with contextlib.ExitStack() as stack:
        system, path = _file_system(file.path)
        try:
            handle = stack.enter_context(system.open(path, "rb"))
        except OSError as error:
            raise UserError(f"cannot open {file.path}: {one_line(error)}") from None
        yield stack.enter_context(_decompressed(handle, file.path)) if decompress else handle


def _decompressed(handle: Any, path: str) -> Any:
    suffix = PurePosixPath(path).suffix
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=handle, mode="rb")
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(handle, "zstd"), _BUFFER)
    if suffix == ".bz2":
        import bz2

        return bz2.BZ2File(handle)
    if suffix == ".xz":
        import lzma

        return lzma.LZMAFile(handle)
    return contextlib.nullcontext(handle)


def _files_at(path: str, dataset: DatasetConfig) -> Iterator[InputFile]:
    system, root = _file_system(path)
    try:
        if any(sign in root for sign in "*?["):
            folder = PurePosixPath(*_before_pattern(root))
            entries = system.glob(root, detail=True)
        elif system.isdir(root):
            folder = PurePosixPath(root)
            entries = system.find(root, detail=True)
        elif system.isfile(root):
            folder = PurePosixPath(root).parent
            entries = {root: system.info(root)}
        else:
            raise UserError(f"dataset {dataset.name}: no file or folder at {path}{_hint(path)}")
    except OSError as error:
        raise UserError(f"dataset {dataset.name}: cannot list {path}: {one_line(error)}") from None
    for entry in entries.values():
        place = PurePosixPath(entry["name"])
        kind = _format(place, dataset)
        if entry["type"] == "file" and kind and not _hidden(place.relative_to(folder)):
            yield InputFile(
                system.unstrip_protocol(entry["name"]).removeprefix("file://"),
                place.relative_to(folder).as_posix(),
                kind,
                int(entry["size"] or 0),
                next((f"{key}={entry[key]}" for key in _STAMPS if entry.get(key) is not None), ""),
            )


def _file_system(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, root = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise UserError(f"cannot read {path}: {one_line(error)}") from None
    return system, str(root)


def _before_pattern(root: str) -> list[str]:
    parts = PurePosixPath(root).parts
    first = next(place for place, part in enumerate(parts) if any(sign in part for sign in "*?["))
    return list(parts[:first])


def _format(path: PurePosixPath, dataset: DatasetConfig) -> str | None:
    """What to read the file as; None for a file that is none of the dataset's."""
    if dataset.format != "auto":
        return dataset.format
    suffixes = [suffix for suffix in path.suffixes if suffix not in _COMPRESSIONS]
    last = suffixes[-1].lower() if suffixes else ""
    return next((kind for kind, known in _FORMATS.items() if last in known), None)


def _hidden(path: PurePosixPath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _hint(path: str) -> str:
    local = Path(path)
    if "://" in path or not local.parent.is_dir():
        return ""
    near = difflib.get_close_matches(local.name, [entry.name for entry in local.parent.iterdir()], n=1)
    return f"; did you mean {local.parent / near[0]}?" if near else ""
