"""A server that answers as vLLM does, with a page in front, and does as the test says."""

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from serving.page_routes import page_router
from serving.server import listening_socket

# A token, its probability, and what else was likely.
Token = tuple[str, float, dict[str, float]]
PARIS: list[Token] = [
    (" Paris", 0.62, {" London": 0.2, " the": 0.03}),
    (",", 0.4, {".": 0.45}),
    ("\n", 0.03, {" which": 0.5, " and": 0.3}),
    ("naïve", 0.95, {}),
]


@dataclass
class Stub:
    """What the server does, and what it saw."""

    tokens: list[Token] = field(default_factory=lambda: list(PARIS))
    text: str | None = None  # where the text is not the tokens joined
    pause: float = 0.0  # seconds between tokens
    ready: bool = True
    key: str | None = None
    chat: bool = False
    refusals: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)
    breaks_after: int | None = None  # events
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    sent: int = 0
    aborted: int = 0
    url: str = ""

    def refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not taken."""
        if not self.ready:
            return error(503, "not ready: loading the model", {"Retry-After": "5"})
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return error(401, "Unauthorized")
        return None


def error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "Error", "param": None, "code": status}}
    return JSONResponse(body, status, headers=headers)


def stub_app(stub: Stub) -> FastAPI:
    app = FastAPI()
    app.include_router(page_router())

    @app.get("/ready")
    async def ready() -> Response:
        reason = None if stub.ready else "loading the model"
        return JSONResponse({"ready": stub.ready, "reason": reason}, 200 if stub.ready else 503)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        data = [{"id": "demo-vllm", "object": "model", "max_model_len": 1024}]
        return stub.refusal(request) or JSONResponse({"object": "list", "data": data})

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        known = stub.refusal(request) or JSONResponse({"count": 3, "tokens": [1, 2, 3]})
        return known if stub.chat else error(400, "no chat template")

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answer(stub, request, chat=False)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _answer(stub, request, chat=True)

    return app


async def _answer(stub: Stub, request: Request, *, chat: bool) -> Response:
    refused = stub.refusal(request)
    if refused is None and stub.refusals:
        refused = error(*stub.refusals.pop(0))
    if refused is not None:
        return refused
    body = await request.json()
    stub.requests.append(body)
    stub.keys.append(request.headers.get("authorization"))
    return StreamingResponse(_events(stub, body, chat=chat), media_type="text/event-stream")


async def _events(stub: Stub, body: dict[str, Any], *, chat: bool) -> AsyncIterator[str]:
    tokens = stub.tokens[: body["max_tokens"]]
    text = "".join(token for token, _, _ in tokens) if stub.text is None else stub.text
    try:
        for place, token in enumerate(tokens):
            await asyncio.sleep(stub.pause)  # before breaking off too: a browser drops what it has not read by then
            if stub.breaks_after == place:
                raise ConnectionError("the stub breaks off")
            given, text = (text, "") if place + 1 == len(tokens) else (text[: len(token[0])], text[len(token[0]) :])
            choice = {"index": 0, **_piece(given, token, chat=chat), "finish_reason": None}
            if place + 1 == len(tokens):
                choice["finish_reason"] = "length"
            stub.sent += 1
            yield _event({"id": "x", "choices": [choice]})
    except (asyncio.CancelledError, GeneratorExit):
        stub.aborted += 1
        raise
    count = len(tokens)
    if body.get("stream_options", {}).get("include_usage"):
        usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        yield _event({"id": "x", "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _piece(text: str, token: Token, *, chat: bool) -> dict[str, Any]:
    name, probability, others = token
    top = {name: math.log(probability), **{other: math.log(share) for other, share in others.items()}}
    if not chat:
        logprobs = {"tokens": [name], "token_logprobs": [top[name]], "top_logprobs": [top], "text_offset": [0]}
        return {"text": text, "logprobs": logprobs}
    listed = [{"token": one, "logprob": logprob, "bytes": None} for one, logprob in top.items()]
    return {"delta": {"content": text}, "logprobs": {"content": [{**listed[0], "top_logprobs": listed}]}}


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


@contextlib.contextmanager
def running_stub(stub: Stub) -> Iterator[Stub]:
    """The stub on a free port, in a thread."""
    with listening_socket("127.0.0.1", 0) as listener:
        config = uvicorn.Config(stub_app(stub), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield stub
        finally:
            server.should_exit = True
            thread.join(20)
