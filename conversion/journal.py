"""What an unfinished conversion has finished so far: a line for what it is, and one for every whole file."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foundation.files import fsync_folder
from foundation.manifest import FileRecord

_JOURNAL = "journal.jsonl"


@dataclass
class Written:
    """What was written: every file's record, and every tensor's SHA-256 by file and key."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    tensors: dict[str, dict[str, str]] = field(default_factory=dict)


def is_unfinished(folder: Path) -> bool:
    """Whether a conversion was filling `folder`."""
    return (folder / _JOURNAL).is_file()


def read_journal(folder: Path) -> tuple[dict[str, Any], Written]:
    """What the conversion into `folder` is, empty if there is none, and its finished files that are still there."""
    about: dict[str, Any] = {}
    done = Written()
    if not is_unfinished(folder):
        return about, done
    for line in (folder / _JOURNAL).read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            # The last line of one that was killed while writing it.
            break
        if not about:
            about = entry
            continue
        record, path = FileRecord(**entry["record"]), folder / entry["file"]
        if path.is_file() and path.stat().st_size == record.size:
            done.files[entry["file"]], done.tensors[entry["file"]] = record, entry["tensors"]
    return about, done


def resume_journal(folder: Path, about: dict[str, Any]) -> Written:
    """What an interrupted attempt at the same finished; a leftover of anything else is removed."""
    before, done = read_journal(folder)
    if before != about:
        shutil.rmtree(folder)
        folder.mkdir()
        done = Written()
    # Anew, without a torn line.
    lines = [about, *(_line(name, done) for name in done.files)]
    _write(folder, "".join(json.dumps(line) + "\n" for line in lines), "w")
    fsync_folder(folder)
    return done


def add_to_journal(folder: Path, name: str, done: Written) -> None:
    """Note that file `name` is whole and on the disk."""
    _write(folder, json.dumps(_line(name, done)) + "\n", "a")


def forget_journal(folder: Path) -> None:
    """Remove the journal: all files are there."""
    (folder / _JOURNAL).unlink(missing_ok=True)
    fsync_folder(folder)


def _line(name: str, done: Written) -> dict[str, Any]:
    return {"file": name, "record": done.files[name].model_dump(), "tensors": done.tensors[name]}


def _write(folder: Path, text: str, mode: str) -> None:
    with (folder / _JOURNAL).open(mode, encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
