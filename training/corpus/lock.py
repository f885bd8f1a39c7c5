"""One build of a folder at a time, and none before the workers of a killed one are gone."""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

from foundation.errors import UserError

LOCK = ".lock"
_WAIT_SECONDS = 60.0


@contextlib.contextmanager
def building(out: Path) -> Iterator[None]:
    """Hold `out` against other builds. Raises UserError when one is at work, or its workers do not end in a minute.

    Taken exclusively, which waits for every worker of an earlier build, and then shared with the workers of this one:
    so a worker that outlives its killed build never writes into the next.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a") as handle:
        _exclusive(handle.fileno(), out)
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield


@contextlib.contextmanager
def working(lock: Path | None) -> Iterator[None]:
    """Share the lock file for as long as a piece of work takes; nothing for None."""
    if lock is None:
        yield
        return
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield


def _exclusive(descriptor: int, out: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(f"another build is at work in {out}; wait for it, or choose another out") from None
            time.sleep(0.1)
        else:
            return
