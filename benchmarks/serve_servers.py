"""The two servers of `benchmarks.serve`: started alike, one at a time, and ended with all their processes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from foundation.errors import UserError

OURS, PEER = "mtnlg serve", "vllm serve"
_ROOT = Path(__file__).resolve().parents[1]
_READY_SECONDS = 300.0
_END_SECONDS = 90.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Served:
    """A server that answers. `access_log` is ours alone."""

    way: str
    url: str
    access_log: Path
    ready_seconds: float


def engine_options() -> list[str]:
    """vLLM's options, for both; what is not here is vLLM's default, as the requests that run at once."""
    return ["--dtype", "bfloat16", "--enforce-eager"]


def engine_environment() -> dict[str, str]:
    """What vLLM reads from the environment, for both: a core for the scheduler, the others compute."""
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1)),
        "TORCH_COMPILE_DISABLE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }


@contextlib.contextmanager
def served(way: str, model: Path, folder: Path) -> Iterator[Served]:
    """`way` serving `model` on a free port, its logs in `folder`. Raises UserError when it does not get ready."""
    port = _free_port()
    access_log, output = folder / "access.jsonl", folder / f"{way.replace(' ', '-')}.log"
    access_log.unlink(missing_ok=True)
    began = time.monotonic()
    with output.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            _command(way, model, port, access_log),
            cwd=_ROOT,
            env={**os.environ, **engine_environment()},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, output)
            yield Served(way, url, access_log, time.monotonic() - began)
        finally:
            _end(process)


def _command(way: str, model: Path, port: int, access_log: Path) -> list[str]:
    if way == OURS:
        command = [sys.executable, "-m", "mtnlg", "serve", str(model), "--access-log", str(access_log)]
    else:
        # What `vllm serve` runs; that command itself needs a distribution that is called vllm.
        command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
        command += ["--served-model-name", model.name, "--host", "127.0.0.1"]
    return [*command, "--port", str(port), *engine_options()]


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, output: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    with httpx.Client(trust_env=False, timeout=10) as client:
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{url}/v1/models").status_code == httpx.codes.OK:
                    return
            time.sleep(_LOOK_SECONDS)
    last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise UserError(f"the server did not get ready; {output} ends with: {' | '.join(last)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what it left behind, too
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
