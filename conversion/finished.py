"""Checkpoints that are there to be looked at: opened, or said to be unfinished."""

from pathlib import Path

from conversion.journal import is_unfinished, read_journal
from conversion.open_source import open_source
from conversion.source import Source
from foundation.errors import UserError
from training.checkpoint.names import checkpoint_root


def open_finished(path: Path) -> Source:
    """The checkpoint at `path`, opened without reading a tensor.

    Raises UserError when there is none, when it is a configuration, or when its writing was interrupted.
    """
    if is_unfinished(path):
        raise _unfinished(path)
    try:
        source = open_source(path)
    except UserError:
        # What is there cannot be opened: then say so if it is because its conversion was interrupted.
        for building in [_building(path), *sorted(checkpoint_root(path).glob(".*.unfinished"))]:
            if is_unfinished(building):
                raise _unfinished(building) from None
        raise
    if not source.identity:
        raise UserError(f"{path} is a configuration, not a checkpoint; mtnlg train {path} --dry-run shows its plan")
    return source


def checkpoint_files(source: Source) -> dict[Path, int]:
    """The sizes in bytes of the files that the manifest lists, or without one of those that hold tensors."""
    if source.files:
        return {source.path / name: record.size for name, record in source.files.items()}
    pieces = (piece for held in source.tensors.values() for piece in held)
    files = dict.fromkeys(extent.file for piece in pieces for extent in piece.extents)
    return {file: file.stat().st_size for file in files}


def _building(path: Path) -> Path:
    """Where a conversion to `path` fills a folder before it gets its name."""
    whole = path.absolute()
    return whole.with_name(f".{whole.name}.unfinished")


def _unfinished(folder: Path) -> UserError:
    done = len(read_journal(folder)[1].files)
    return UserError(
        f"{folder} is an unfinished conversion, interrupted after {done} files; give the same mtnlg convert again "
        "to finish it"
    )
