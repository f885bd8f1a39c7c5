"""`generate`: one answer on the terminal, from a server that answers as vLLM does, and from an engine's stand-in."""

import io
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.errors import UserError
from serving.generate import generate
from tests.serving.stub_openai import Stub, running_stub

ROOT = Path(__file__).resolve().parents[2]
ANSWER = " Paris,\nnaïve\n"
# `serve` with everything but the engine; the stand-in also writes where it should not.
IN_PROCESS = """
import argparse, os, sys
from pathlib import Path
from serving import server, supervisor
from serving.generate import generate
from serving.guard.settings import EngineFacts
from serving.model_folder import ModelFolder
from tests.serving.stub_openai import Stub, stub_app

class Engine:
    errored = False
    def shutdown(self, timeout=None):
        print("engine: shut down", flush=True)

async def token(engine):
    os.write(1, b"engine: noise\\n")

async def app(engine, options):
    return stub_app(Stub(pause=float(sys.argv[1]), key="sk-1"))

server.inspect_model = lambda path, sizes, given: ModelFolder(path, "demo-vllm", 1, False, None)
server.engine_version = lambda: ("0", True)
server.prepare_environment = lambda *a, **k: None
server.parse_options = lambda *a, **k: argparse.Namespace(
    served_model_name=["demo-vllm"], api_key=["sk-1"], otlp_traces_endpoint=None, root_path=None
)
supervisor.start_engine = lambda options: Engine()
supervisor.make_token, supervisor.openai_app = token, app
supervisor.note_outputs = lambda engine, note: None
supervisor.engine_facts = lambda engine, options: EngineFacts(("demo-vllm",), 2048, count_tokens=len)
try:
    generate("runs/demo-vllm", "The capital of France is")
except KeyboardInterrupt:
    sys.exit(130)
"""
AT_URL = """
import sys
from serving.generate import generate
generate("demo-vllm", sys.argv[2], url=sys.argv[1])
"""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub(Stub()) as running:
        yield running


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_answer_of_a_running_server(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    generate("demo-vllm", "Once", url=f"{stub.url}/v1/", max_tokens=9, temperature=0.0, top_p=0.9, seed=3, stop=["Q"])
    assert capsys.readouterr().out == ANSWER
    wanted = {"prompt": "Once", "max_tokens": 9, "temperature": 0.0, "top_p": 0.9, "seed": 3, "stop": ["Q"]}
    assert stub.requests[0].items() >= wanted.items()


def test_model_may_be_the_folder_that_the_server_serves(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    generate("runs/demo-vllm", "Once", url=stub.url)
    assert stub.requests[0]["model"] == "demo-vllm"
    with pytest.raises(UserError, match="has no model other; it has demo-vllm"):
        generate("other", "Once", url=stub.url)


@pytest.mark.parametrize("prompt", [None, "-"])
def test_prompt_from_standard_input(stub: Stub, monkeypatch: pytest.MonkeyPatch, prompt: str | None) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n"))
    generate("demo-vllm", prompt, url=stub.url)
    assert stub.requests[0]["prompt"] == "two\nlines"


def test_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(UserError, match="no prompt"):
        generate("m", None, url="http://127.0.0.1:9")
    with pytest.raises(UserError, match="empty"):
        generate("m", "", url="http://127.0.0.1:9")


def test_key(stub: Stub) -> None:
    stub.key = "sk-secret"
    with pytest.raises(UserError, match="401: Unauthorized; pass the server's key"):
        generate("demo-vllm", "Once", url=stub.url)
    generate("demo-vllm", "Once", url=stub.url, api_key="sk-secret")
    assert stub.keys == ["Bearer sk-secret"]


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (429, {"Retry-After": "7"}, "answered 429: no; try again in 7 s"),
        (503, {}, "answered 503: no$"),
        (400, {}, "answered 400: no$"),
    ],
)
def test_refusal_is_one_line(stub: Stub, status: int, headers: dict[str, str], message: str) -> None:
    stub.refusals.append((status, "no", headers))
    with pytest.raises(UserError, match=message):
        generate("demo-vllm", "Once", url=stub.url.replace("//", "//user:password@"))


def test_refusal_shows_no_password(stub: Stub) -> None:
    stub.refusals.append((400, "no", {}))
    with pytest.raises(UserError) as caught:
        generate("demo-vllm", "Once", url=stub.url.replace("//", "//user:password@"))
    assert "password" not in str(caught.value)


def test_nobody_listens_and_broken_stream(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9: ConnectError"):
        generate("m", "Once", url="http://127.0.0.1:9")
    stub.breaks_after = 1
    with pytest.raises(UserError, match=r"RemoteProtocolError|broke off"):
        generate("demo-vllm", "Once", url=stub.url)
    assert capsys.readouterr().out == " Paris\n"


def test_terminal_shows_prompt_and_cost_but_takes_no_orders_from_a_model(stub: Stub) -> None:
    stub.tokens = [(" red\x1b[31m", 0.5, {}), ("\x07\x9b1m\n", 0.5, {}), ("end", 0.5, {})]
    stub.pause = 0.01
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", AT_URL, stub.url, "Once"], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs
    )
    assert process.wait(60) == 0
    shown = os.read(ours, 10000).decode()
    os.close(ours)
    os.close(theirs)
    assert shown.startswith("Once red[31m1m\r\nend\r\nmtnlg: 3 tokens, first after 0.")
    assert "tokens/s" in shown


def test_control_c_ends_the_request_on_the_server(stub: Stub) -> None:
    stub.tokens = [(f" {number}", 0.5, {}) for number in range(200)]
    stub.pause = 0.1
    process = start(AT_URL, stub.url, "Once")
    assert process.stdout is not None
    assert process.stdout.read(4) == " 0 1"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out.endswith("\n")
    deadline = time.monotonic() + 10
    while not stub.aborted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert stub.aborted == 1


def test_reader_that_goes_away_is_no_error(stub: Stub) -> None:
    stub.tokens = [(f" {number}", 0.5, {}) for number in range(50)]
    stub.pause = 0.05
    process = start(AT_URL, stub.url, "Once")
    assert process.stdout is not None
    assert process.stdout.read(2) == " 0"
    process.stdout.close()
    assert process.wait(30) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_engine_in_process_leaves_standard_output_to_the_answer() -> None:
    out, errors = (process := start(IN_PROCESS, "0")).communicate(timeout=60)
    assert (process.returncode, out) == (0, ANSWER), errors
    assert "engine: noise" in errors
    assert "engine: shut down" in errors


def test_control_c_ends_the_engine_without_waiting_for_the_answer() -> None:
    process = start(IN_PROCESS, "20")  # seconds for each token
    assert process.stderr is not None
    while "serving" not in process.stderr.readline():
        pass
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=15)
    assert (process.returncode, out) == (130, ""), errors
    assert "engine: shut down" in errors
