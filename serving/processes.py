"""The engine's processes and what they leave behind: temporary files, stragglers."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped, unused-ignore]

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


def end_processes(processes: list[psutil.Process], *, grace_seconds: float) -> None:
    """Wait for processes to end by themselves, then kill them."""
    _, alive = psutil.wait_procs(processes, timeout=grace_seconds)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_KILL_SECONDS)
