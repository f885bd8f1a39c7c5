"""How a server ends, whatever ends it, and what it leaves behind: nothing."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from tests.serving.running_server import END_SECONDS, ROOT, START_SECONDS, RunningServer, running_server, serve_command

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("vllm_dist_*")}  # noqa: S108


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def stream_lines(server: RunningServer, lines: list[str], model: str = "vllm2") -> None:
    body = {
        "model": model,
        "prompt": "a",
        "max_tokens": 120,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
    }
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=END_SECONDS) as response:
        lines.extend(line for line in response.iter_lines() if line)


def test_sigterm_finishes_what_runs_and_leaves_nothing(models: Path) -> None:
    before = shared_memory()
    with running_server(str(models / "vllm2")) as server:
        processes = server.descendants()
        assert len(processes) >= 3
        lines: list[str] = []
        reader = threading.Thread(target=stream_lines, args=(server, lines))
        reader.start()
        while not lines and reader.is_alive():
            time.sleep(0.01)
        assert server.stop(signal.SIGTERM) == 0
        reader.join(END_SECONDS)
        assert lines[-1] == "data: [DONE]"
        # vLLM may put several tokens into one line, so the lines themselves are not counted
        usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
        assert usage["completion_tokens"] == 120
    assert_gone(processes)
    assert shared_memory() <= before


def test_ctrl_c_reaches_the_whole_group_and_ends_well(models: Path) -> None:
    with running_server(str(models / "vllm1")) as server:
        os.killpg(server.process.pid, signal.SIGINT)
        assert server.process.wait(END_SECONDS) == 0
    assert "Traceback" not in "".join(server.output)


def test_a_dead_worker_ends_the_server_with_an_error(models: Path) -> None:
    before = shared_memory()
    with running_server(str(models / "vllm2"), "--engine-restarts", "0") as server:
        processes = server.descendants()
        worker = next(process for process in processes if "Worker" in " ".join(process.cmdline()))
        worker.kill()
        assert server.process.wait(END_SECONDS) == 2
    assert server.output[-1].startswith("mtnlg: the engine died")
    assert_gone(processes)
    assert shared_memory() <= before


def test_a_hung_engine_is_noticed_and_started_again(models: Path) -> None:
    with running_server(str(models / "vllm1"), "--engine-restarts", "1") as server:
        before = server.descendants()
        engine = next(process for process in before if "EngineCore" in " ".join(process.cmdline()))
        lines: list[str] = []
        reader = threading.Thread(target=stream_until_it_ends, args=(server, lines))
        engine.suspend()
        stopped = time.monotonic()
        reader.start()
        while httpx.get(f"{server.url}/ready").status_code == 200:
            assert time.monotonic() - stopped < END_SECONDS
            time.sleep(0.1)
        reader.join(END_SECONDS)
        assert not reader.is_alive(), "a request in a hung engine must end"
        assert "error" in "".join(lines)
        while httpx.get(f"{server.url}/ready").status_code != 200:
            assert time.monotonic() - stopped < START_SECONDS
            time.sleep(0.5)
        assert "hung: no token for" in "".join(server.output)
        again: list[str] = []
        stream_lines(server, again, model="vllm1")
        assert again[-1] == "data: [DONE]"
        next(process for process in server.descendants() if "EngineCore" in " ".join(process.cmdline())).kill()
        assert server.process.wait(END_SECONDS) == 2
        assert_gone([process for process in before if process.pid != server.process.pid])


def stream_until_it_ends(server: RunningServer, lines: list[str]) -> None:
    try:
        stream_lines(server, lines, model="vllm1")
    except httpx.HTTPError as error:
        lines.append(f"error: {error}")


def test_sigterm_while_loading(models: Path) -> None:
    process = subprocess.Popen(
        serve_command(str(models / "vllm2"), "--port", "0"), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        while "loading" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(1.5)  # into the start of the engine's processes
        processes = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(END_SECONDS) == 0
    assert_gone(processes)


def test_check_streams_a_completion_and_stops(models: Path) -> None:
    command = serve_command(str(models / "vllm2"), "--port", "0", "--check", "hello")
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    announced, _, printed = result.stdout.partition("mtnlg: serving vllm2 at http://127.0.0.1:")
    assert "mtnlg: loading vllm2" in announced
    assert printed.splitlines()[1].startswith("hello")
    assert len(printed) > len("hello") + 20


def test_option_that_vllm_does_not_know_is_one_line(models: Path) -> None:
    command = serve_command(str(models / "vllm1"), "--port", "0", "--no-such-option", "1")
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("mtnlg: vLLM: ")
    assert "--no-such-option" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
