"""What the cache keeps: data from packages, converted checkpoints. Everything in it can be made again."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.errors import UserError

_DAY_SECONDS = 86_400.0
_REMOVED = ".removed-"


@dataclass(frozen=True)
class Kept:
    """One folder of the cache. `name` is its path there (`converted/8fcd...`), `used` the seconds since 1970."""

    name: str
    path: Path
    size: int
    used: float

    @property
    def days_unused(self) -> float:
        """Since it was made or last asked for."""
        return max(0.0, time.time() - self.used) / _DAY_SECONDS


def cache_folder() -> Path:
    """Where it is: `$MTNLG_CACHE`, or `mtnlg` in the user's cache folder."""
    named = os.environ.get("MTNLG_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mtnlg"


def mark_used(folder: Path) -> None:
    """Note that a folder of the cache was asked for; a cache that cannot be written stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def cache_lock(folder: Path) -> Path:
    """The file that is locked by who writes `folder`."""
    return folder.with_name(f".{folder.name}.lock")


def list_cache() -> list[Kept]:
    """All that is kept, sorted by name."""
    return [
        Kept(f"{path.parent.name}/{path.name}", path, _size(path), path.stat().st_mtime)
        for path in sorted(cache_folder().glob("*/*"))
        if path.is_dir() and not path.name.startswith(".")
    ]


def remove_from_cache(names: Sequence[str], *, days_unused: float | None = None, dry_run: bool = False) -> list[Kept]:
    """Remove what is called so (a kind, as `converted`, means all of it) and was not used for so many days.

    Without names everything is meant. Returns what was removed, or would be. Raises UserError, before anything is
    removed, for a name that is not there and for what another process is writing.
    """
    kept = list_cache()
    for name in names:
        if not any(name in (one.name, one.path.parent.name) for one in kept):
            raise UserError(f"the cache keeps nothing called {name}; mtnlg cache list shows its names")
    chosen = [
        one
        for one in kept
        if (not names or one.name in names or one.path.parent.name in names)
        and (days_unused is None or one.days_unused >= days_unused)
    ]
    for one in chosen:
        _check_idle(one)
    if not dry_run:
        _remove(chosen)
    return chosen


def _remove(chosen: Sequence[Kept]) -> None:
    for left in cache_folder().glob(f"*/{_REMOVED}*"):  # by a removal that was killed
        shutil.rmtree(left)
    for one in chosen:
        # Half of a removed folder must not look like a whole one.
        gone = one.path.with_name(f"{_REMOVED}{one.path.name}")
        one.path.rename(gone)
        shutil.rmtree(gone)


def _check_idle(kept: Kept) -> None:
    lock = cache_lock(kept.path)
    if not lock.is_file():
        return
    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{kept.name} is being written by another process; remove it when that has ended") from None


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
