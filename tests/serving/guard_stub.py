"""A stand-in for the engine behind the guard, and requests to it without a network."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from serving.guard.guard import Guard
from serving.guard.observer import Observer
from serving.guard.settings import AdmissionLimits, EngineFacts, GuardSettings, RequestLimits, Times

MODEL = "stub"
CONTEXT = 128
Result = TypeVar("Result")


def play(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run what a test does, for a minute at most."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@dataclass
class Clock:
    """Time that passes when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class View:
    """An engine that is ready unless a test says otherwise; a token is a character."""

    draining: bool = False
    reason: str | None = None
    facts: EngineFacts | None = field(
        default_factory=lambda: EngineFacts((MODEL, "other"), CONTEXT, len, vocab_size=1000, token_characters=1)
    )

    def unready(self) -> str | None:
        return "shutting down" if self.draining else self.reason


@dataclass
class Stub:
    """Answers like vLLM; counts what reaches it. `gate` holds answers back while it is not set."""

    reached: int = 0
    ended: int = 0
    documents: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    pause: float = 0.0
    piece: str = "x"
    fails: bool = False
    error_after: int | None = None  # events of a stream

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/live")
        @app.get("/ready")
        @app.get("/")
        @app.get("/static/page.css")
        async def open_routes() -> dict[str, bool]:
            return {"open": True}

        @app.get("/metrics")
        async def metrics() -> PlainTextResponse:
            return PlainTextResponse("vllm:stub 1\n")

        @app.get("/v1/models")
        async def models() -> dict[str, str]:
            return {"object": "list"}

        app.add_api_route("/v1/completions", self._work, methods=["POST"])
        app.add_api_route("/v1/chat/completions", self._work, methods=["POST"])
        app.add_api_route("/tokenize", self._work, methods=["POST"])
        app.add_api_route("/v1/fails", self._fails, methods=["POST"])
        app.add_api_route("/v1/lacks", self._lacks, methods=["POST"])
        return app

    async def _fails(self) -> None:
        raise RuntimeError("broken")

    async def _lacks(self) -> Response:
        error = {"message": "The model does not support this", "type": "NotImplementedError", "code": 501}
        return JSONResponse({"error": error}, 501)

    async def _work(self, request: Request) -> Response:
        self.reached += 1
        document = json.loads(await request.body())
        self.documents.append(document)
        self.headers.append(dict(request.headers))
        tokens = document.get("max_tokens", 4)
        usage = {"prompt_tokens": len(document.get("prompt", "")), "completion_tokens": tokens, "total_tokens": 9}
        if document.get("stream"):
            told = (document.get("stream_options") or {}).get("include_usage")
            return StreamingResponse(self._events(tokens, usage if told else None), media_type="text/event-stream")
        listening = asyncio.create_task(_disconnected(request))
        answering = asyncio.create_task(self._hold())
        try:
            await asyncio.wait({listening, answering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
            answering.cancel()
            self.ended += 1
        if self.fails:
            raise RuntimeError("broken")
        return JSONResponse({"choices": [{"text": self.piece * tokens}], "usage": usage})

    async def _hold(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

    async def _events(self, tokens: int, usage: dict[str, int] | None) -> AsyncIterator[str]:
        try:
            for number in range(tokens):
                if number == self.error_after:
                    yield f"data: {json.dumps({'error': {'message': 'the engine broke'}})}\n\n"
                    break
                yield f"data: {json.dumps({'choices': [{'text': self.piece}]})}\n\n"
                await asyncio.sleep(self.pause)
                await self._hold()
            if usage is not None:
                yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.ended += 1


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@dataclass
class Bench:
    """A guard over a stub, and a client of it."""

    guard: Guard
    stub: Stub
    view: View
    client: httpx.AsyncClient
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """The access log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def complete(self, secret: str | None = None, **fields: Any) -> httpx.Response:
        """Post to /v1/completions."""
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        return await self.client.post("/v1/completions", json={"prompt": "hello", **fields}, headers=headers)

    def samples(self) -> dict[str, float]:
        """Our metrics that are not zero, by name and labels, without buckets."""
        lines = self.guard.metrics_text().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "_bucket" not in line]
        return {name: float(value) for name, value in pairs if float(value) != 0 and "_created" not in name}


@contextlib.asynccontextmanager
async def bench(
    folder: Path,
    *,
    keys: Path | None = None,
    limits: dict[str, Any] | None = None,
    times: dict[str, Any] | None = None,
    admission: dict[str, Any] | None = None,
    clock: Callable[[], float] = time.monotonic,
    observer: Observer | None = None,
    local_only: bool = False,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A guard that logs into `folder`, with the settings given."""
    log = folder / "access.jsonl"
    chosen = GuardSettings(
        limits=RequestLimits(**(limits or {})),
        times=Times(**(times or {})),
        admission=AdmissionLimits(**(admission or {})),
        keys=keys,
        access_log=log,
        **settings,
    )
    stub, view = Stub(), View()
    app: Any = stub.app()
    guard = Guard(app, chosen, view, clock, observer, local_only=local_only)
    transport = httpx.ASGITransport(app=guard, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield Bench(guard, stub, view, client, log)
    guard.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until `condition` holds; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
