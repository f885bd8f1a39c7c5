"""The engine's processes and what they leave behind: temporary files, shared memory, stragglers."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, not a temporary file
_KILL_SECONDS = 3.0


@contextlib.contextmanager
def private_temporary_folder() -> Iterator[None]:
    """Give this process and its children a temporary folder of their own, removed at the end.

    vLLM leaves a rendezvous file and sockets behind on every run.
    """
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="mtnlg-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = None
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before


def engine_processes() -> list[psutil.Process]:
    """Every living process below this one, but Python's resource tracker, which ends by itself."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "multiprocessing.resource_tracker" not in " ".join(process.cmdline()):
                found.append(process)
    return found


def shared_memory_of(processes: list[psutil.Process]) -> set[Path]:
    """The shared-memory files that vLLM's workers have mapped to add up their tensor slices."""
    files: set[Path] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            files |= {Path(entry.path) for entry in process.memory_maps() if entry.path}
    return {path for path in files if path.parent == _SHARED_MEMORY and "-cpushm_" in path.name}


def end_processes(processes: list[psutil.Process], *, grace_seconds: float) -> None:
    """Wait for processes to end by themselves, then kill them."""
    _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_KILL_SECONDS)
