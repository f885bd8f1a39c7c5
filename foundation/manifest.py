"""manifest.json: what an output folder holds and where it came from; its presence means complete."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foundation.config import StrictModel
from foundation.errors import UserError
from foundation.files import read_json, sha256_file, write_json

MANIFEST = "manifest.json"


class FileRecord(StrictModel):
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        """Measure the file at `path`."""
        return cls(size=path.stat().st_size, sha256=sha256_file(path))


class Manifest(StrictModel):
    """A folder's contents. `about` says what the folder is: format, layout, model, source, step."""

    format: str
    about: dict[str, Any]
    files: dict[str, FileRecord]


def write_manifest(
    folder: Path,
    format: str,
    about: Mapping[str, Any],
    files: Iterable[Path],
    known: Mapping[str, FileRecord] | None = None,
) -> Manifest:
    """Record `files` (inside `folder`) and write the manifest last, which commits the folder.

    The `known` ones, by name, were measured while they were written.
    """
    records = dict(known or {})
    for path in files:
        name = path.relative_to(folder).as_posix()
        if name not in records:
            records[name] = FileRecord.of(path)
    manifest = Manifest(format=format, about=dict(about), files=dict(sorted(records.items())))
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None when the folder is absent or was never completed."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        return Manifest.model_validate(read_json(path))
    except ValueError as error:
        raise UserError(f"{path} is not a manifest: {' '.join(str(error).split())}") from None


def check_manifest(folder: Path, manifest: Manifest, *, checksums: bool = True) -> list[str]:
    """What contradicts the manifest, a line a file; empty when the folder is whole."""
    problems = []
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.stat().st_size != record.size:
            problems.append(f"{path} has {path.stat().st_size} bytes instead of {record.size}")
        elif checksums and sha256_file(path) != record.sha256:
            problems.append(f"{path} was changed: its sha256 differs from the manifest's")
    return problems
