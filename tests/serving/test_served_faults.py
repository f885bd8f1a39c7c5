"""What operators meet: files that go away, a full disk, idle crowds, other hosts' names, an end at a bad moment."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from serving.keys import add_key
from tests.serving.running_server import END_SECONDS, ROOT, START_SECONDS, RunningServer, running_server, serve_command

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

MODEL = "vllm1"
IDLE = 300


def complete(server: RunningServer, key: str | None = None, host: str | None = None, **changes: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if host is not None:
        headers["Host"] = host
    body = {"model": MODEL, "prompt": "the", "max_tokens": 4, **changes}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=END_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)


def has_said(server: RunningServer, words: str) -> bool:
    return any(words in line for line in server.output)


def engine_of(server: RunningServer) -> psutil.Process:
    return next(one for one in server.descendants() if "EngineCore" in " ".join(one.cmdline()))


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


def test_key_file_goes_and_the_disk_is_full(models: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "alice")
    with running_server(str(models / MODEL), "--keys", str(keys), "--access-log", "/dev/full") as server:
        assert complete(server, key).status_code == 200
        keys.unlink()
        wait_until(lambda: complete(server, key).status_code == 200 and has_said(server, "stay in force"), 30)
        assert complete(server, "mtnlg-wrong").status_code == 401
        assert complete(server, key, host="evil.example").status_code == 200  # who has a key may call it as he likes
        assert server.stop() == 0
    assert sum("cannot be written" in line for line in server.output) == 1
    assert "Traceback" not in "".join(server.output)


def test_idle_crowd_and_names_of_others(models: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("times:\n  head_seconds: 3\n")
    log = str(tmp_path / "access.jsonl")
    with running_server(str(models / MODEL), "--limits", str(limits), "--access-log", log) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        crowd = [socket.create_connection(address) for _ in range(IDLE)]
        try:
            assert complete(server).status_code == 200
            for one in crowd:  # every one is ended, none with an answer
                one.settimeout(END_SECONDS)
                assert one.recv(1) == b""
        finally:
            for one in crowd:
                one.close()
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example"):
            refused = complete(server, host=host)
            assert (refused.status_code, refused.json()["error"]["code"]) == (421, "wrong_host")
            assert httpx.get(server.url, headers={"Host": host}).status_code == 421
        assert complete(server, host="localhost:8000").status_code == 200
        assert server.stop() == 0


def test_sigterm_while_the_engine_is_started_again(models: Path) -> None:
    with running_server(str(models / MODEL)) as server:
        processes = server.descendants()
        engine_of(server).kill()
        wait_until(lambda: has_said(server, "starting it again"))
        refused = complete(server)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        wait_until(lambda: any("EngineCore" in " ".join(one.cmdline()) for one in living(server)))
        processes += living(server)
        assert server.stop() == 0
    after = "".join(server.output).partition("starting it again")[2]  # before it, vLLM tells how its engine died
    assert "Traceback" not in after
    assert_gone(processes)


def living(server: RunningServer) -> list[psutil.Process]:
    return [one for one in server.descendants() if one.status() != psutil.STATUS_ZOMBIE]


def test_second_sigterm_ends_what_hangs_with_an_error(models: Path) -> None:
    with running_server(str(models / MODEL)) as server:
        processes = server.descendants()
        engine_of(server).suspend()
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(complete(server)))
        asking.start()
        wait_until(lambda: "mtnlg_running_requests 1.0" in httpx.get(f"{server.url}/metrics").text)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/ready").json()["reason"] == "shutting down")
        assert complete(server).status_code == 503
        assert server.stop(signal.SIGTERM) == 0
        asking.join(END_SECONDS)
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "shutdown")
    assert_gone(processes)


@pytest.mark.parametrize("delay", [1.0, 4.0])
def test_sigterm_before_anything_is_served(models: Path, tmp_path: Path, delay: float) -> None:
    """While Python still imports the engine there is no service yet that could end in good order."""
    command = serve_command(str(models / MODEL), "--port", "0")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    with process:
        wait_until(lambda: bool(list(tmp_path.iterdir())), 60)
        time.sleep(delay - 1.0)
        process.terminate()
        assert process.wait(END_SECONDS) == 0
    assert list(tmp_path.iterdir()) == []
