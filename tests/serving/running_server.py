"""`mtnlg serve` in a process of its own, as users start it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240
END_SECONDS = 90


@dataclass
class RunningServer:
    """A server that has said it is ready."""

    process: subprocess.Popen[str]
    url: str = ""
    output: list[str] = field(default_factory=list)

    def descendants(self) -> list[psutil.Process]:
        """The engine's processes."""
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)


def serve_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mtnlg", "serve", *arguments]


@contextlib.contextmanager
def running_server(*arguments: str) -> Iterator[RunningServer]:
    """Start `mtnlg serve` on a free port, wait until it is ready, and end it with the block."""
    process = subprocess.Popen(
        serve_command(*arguments, "--port", "0"),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    server = RunningServer(process)
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(server, ready), daemon=True)
    reader.start()
    try:
        assert ready.wait(START_SECONDS), f"not ready: {''.join(server.output)}"
        assert server.url, f"ended: {''.join(server.output)}"
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        reader.join(END_SECONDS)


def _read(server: RunningServer, ready: threading.Event) -> None:
    assert server.process.stdout is not None
    for line in server.process.stdout:
        server.output.append(line)
        if line.startswith("mtnlg: serving "):
            server.url = line.split()[-1]
            ready.set()
    ready.set()
