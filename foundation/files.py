"""Writes that are whole or absent: temporary file, fsync, atomic rename."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foundation.errors import UserError

_CHUNK = 1 << 22


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` for UTF-8 text."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """`write_bytes` for a JSON document, indented and ending in a newline."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON document at `path`. Raises UserError when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"no file at {path}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fsync_file(path: Path) -> None:
    """Force a finished file's bytes to the disk."""
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def fsync_folder(path: Path) -> None:
    """Force a folder's entries (creations and renames in it) to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def building_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that becomes `target` only when the block ends without an error.

    An interrupted build leaves `target` as it was; the leftover is removed by the next build.
    """
    target = target.resolve()
    building = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    yield building
    if target.exists():
        shutil.rmtree(target)
    building.replace(target)
    fsync_folder(target.parent)
