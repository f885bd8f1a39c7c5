"""How a server ends that is still being asked, with a stand-in for the engine."""

import argparse
import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from serving import server
from serving.app import ServerState
from serving.guard.settings import EngineFacts, GuardSettings
from tests.serving.guard_stub import CONTEXT, MODEL, Stub, until


class Engine:
    errored = False

    def shutdown(self, timeout: float | None = None) -> None: ...


class Supervisor:
    """One that has nothing to do."""

    async def start(self) -> None: ...

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def end(self) -> None: ...


async def serve_stub(
    stub: Stub,
    ask: Callable[[httpx.AsyncClient, Callable[[], None]], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
    root_path: str | None = None,
) -> Any:
    """Serve `stub` as an engine is, and let `ask` talk to it; its second argument stops the server."""
    monkeypatch.setattr(server, "_DRAIN_SECONDS", 0.3)
    monkeypatch.setattr(server, "Supervisor", lambda *_: Supervisor())
    facts = EngineFacts((MODEL,), CONTEXT, len, vocab_size=1000, token_characters=1)
    inner = stub.app()
    inner.root_path = root_path or ""
    state = ServerState(model=MODEL, engine_version="1", engine=Engine(), openai=inner, facts=facts)
    options = argparse.Namespace(api_key=None, root_path=root_path)
    with server.listening_socket("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        service = server._Service(state, listener, options, 0, GuardSettings(log_requests=False), local_only=True)
        running = asyncio.create_task(service.run(None))
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=url, timeout=20) as client:
            await until(lambda: service._http.started)
            answer = await ask(client, service._stop.set)
            service._stop.set()
            await running
    return answer


def test_stream_that_cannot_be_finished_in_time_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(gate=None)

    async def ask(client: httpx.AsyncClient, stop: Callable[[], None]) -> str:
        stub.gate = asyncio.Event()  # never set
        body = {"prompt": "a", "stream": True}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: stub.reached == 1)
        stop()
        await asyncio.sleep(0.1)
        late = await client.post("/v1/completions", json=body)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert int(late.headers["retry-after"]) > 0
        return (await asking).text

    text = asyncio.run(serve_stub(stub, ask, monkeypatch))
    assert '"code": "shutdown"' in text
    assert text.endswith("data: [DONE]\n\n")


def test_what_can_be_finished_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub(pause=0.02)

    async def ask(client: httpx.AsyncClient, stop: Callable[[], None]) -> str:
        asking = asyncio.create_task(
            client.post("/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 4})
        )
        await until(lambda: stub.reached == 1)
        stop()
        return (await asking).text

    text = asyncio.run(serve_stub(stub, ask, monkeypatch))
    assert "error" not in text
    assert text.endswith("data: [DONE]\n\n")


def test_prefix_of_a_proxy_leads_past_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that the guard does not know, and vLLM does, would go unchecked."""

    async def ask(client: httpx.AsyncClient, _: Callable[[], None]) -> list[int]:
        body = {"prompt": "a", "max_tokens": 10**6}
        return [(await client.post(path, json=body)).status_code for path in ("/v1/completions", "/api/v1/completions")]

    stub = Stub()
    assert asyncio.run(serve_stub(stub, ask, monkeypatch, root_path="/api")) == [400, 404]
    assert stub.reached == 0


def test_line_that_cannot_be_printed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    class Full:
        def write(self, text: str) -> int:
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", Full())
    server._Service._report("hello")
    monkeypatch.undo()
    assert tried == ["mtnlg: hello"]
