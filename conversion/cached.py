"""Training checkpoints in a format for inference, converted once and kept in the cache."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

from conversion.convert import Options, convert
from conversion.read_training import find_training_checkpoint
from conversion.vllm import CONTRACT
from foundation.cache import cache_folder, cache_lock, mark_used
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.manifest import MANIFEST, check_manifest, read_manifest


def cached_conversion(path: Path, format: str, tensor_parallel_size: int = 1) -> Path | None:
    """The training checkpoint at `path`, or the run's newest, as `hf` or `vllm`; None where there is none.

    It lies in the cache under the SHA-256 of the checkpoint's manifest. What is not there is converted first, which is
    said on standard error; an interrupted conversion is finished, and one that another process is at is waited for.
    Raises UserError for a checkpoint that was never committed, is damaged, or cannot be cut so.
    """
    checkpoint = find_training_checkpoint(path) if path.is_dir() else None
    if checkpoint is None:
        return None
    if not (checkpoint / MANIFEST).is_file():
        raise UserError(f"{checkpoint} was never committed: its writing did not finish")
    # A newer contract with vLLM is another folder.
    kind = "hf" if format == "hf" else f"{CONTRACT.replace(' ', '-')}-tensor-{tensor_parallel_size}"
    folder = cache_folder() / "converted" / f"{sha256_file(checkpoint / MANIFEST)[:32]}-{kind}"
    if _is_whole(folder):
        mark_used(folder)
        return folder
    size = None if format == "hf" else tensor_parallel_size
    with _turn(folder):
        if not _is_whole(folder):
            print(f"mtnlg: converting {checkpoint}, once", file=sys.stderr)
            _convert(checkpoint, folder, Options(format, tensor_parallel_size=size))
    return folder


def _is_whole(folder: Path) -> bool:
    manifest = read_manifest(folder)
    return manifest is not None and not check_manifest(folder, manifest, checksums=False)


def _convert(checkpoint: Path, folder: Path, options: Options) -> None:
    try:
        # Standard output may be for an answer or a table.
        with contextlib.redirect_stdout(sys.stderr):
            convert(checkpoint, folder, options)
    except (OSError, UserError):
        if (checkpoint / MANIFEST).is_file():
            raise
        raise UserError(
            f"{checkpoint} was removed while it was read: the run keeps its newest checkpoints only; try again"
        ) from None


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """The only process that converts to `folder`, after waiting for another that does."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = cache_lock(folder).open("wb")
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written: {error.strerror}; name another cache folder with MTNLG_CACHE"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"mtnlg: another process is converting to {folder}; waiting for it", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
