"""The HTTP application: whether the server lives and is ready, its version, and vLLM's OpenAI routes."""

import importlib.metadata
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from serving.engine import Engine
from serving.guard.asgi import Asgi, Message, Receive, Send
from serving.guard.metrics import GuardMetrics
from serving.guard.refusal import not_ready
from serving.guard.settings import EngineFacts
from serving.openapi import openapi_router
from serving.page_routes import page_router
from serving.score import error_response, invalid_request, score_router

# An engine that has made no token for so long is not ready, whatever it says; the supervisor probes it long before.
_STALE_SECONDS = 10.0


@dataclass
class ServerState:
    """What the server knows of itself. `openai` and `facts` are set while the engine makes tokens; `last_token` is when
    it did. `metrics` gives what stands behind vLLM's own at `/metrics`."""

    model: str
    engine_version: str
    engine: Engine | None = None
    openai: Asgi | None = None
    facts: EngineFacts | None = None
    metrics: Callable[[], bytes] = bytes
    draining: bool = False
    restarts: int = 0  # of the engine, after it died or hung
    last_token: float = field(default_factory=time.monotonic)

    def note_token(self) -> None:
        """The engine has just made something."""
        self.last_token = time.monotonic()

    def silent_seconds(self) -> float:
        """How long the engine has made nothing."""
        return time.monotonic() - self.last_token

    def unready(self) -> str | None:
        """Why requests are not taken now, or None when they are."""
        if self.draining:
            return "shutting down"
        if self.engine is None or self.openai is None:
            return "loading the model"
        if self.engine.errored:
            return "the engine has died"
        return "the engine does not answer" if self.silent_seconds() > _STALE_SECONDS else None


def build_app(state: ServerState) -> FastAPI:
    """The application over `state`, which changes while it runs.

    `/live`: the process answers. `/ready`: 200 when requests are taken, else 503 and the reason.
    `/version`: what runs. `/`: the page. Every other path is vLLM's; 503 with Retry-After until it is ready.
    """
    app = FastAPI(title="mtnlg", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RequestValidationError, invalid_request)

    @app.get("/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/ready", responses={503: {"description": "Requests are not taken, and why."}})
    async def ready() -> JSONResponse:
        reason = state.unready()
        return JSONResponse({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {
            "mtnlg": importlib.metadata.version("mtnlg"),
            "vllm": state.engine_version,
            "model": state.model,
        }

    app.include_router(page_router())
    app.include_router(score_router(lambda: state.engine, lambda model: _no_scores(state, model)))
    app.include_router(openapi_router(app, lambda: state.openai))
    app.mount("/", _openai_routes(state))
    return app


def add_metrics(state: ServerState, metrics: GuardMetrics) -> None:
    """Show among `metrics` what the server knows of itself."""
    versions = {"mtnlg": importlib.metadata.version("mtnlg"), "vllm": state.engine_version}
    metrics.facts("mtnlg_server", "What runs.", {**versions, "model": state.model})
    metrics.gauge("mtnlg_ready", "1 while requests are taken, as /ready says.", lambda: state.unready() is None)
    metrics.counter("mtnlg_engine_restarts", "Engines that died or hung and were replaced.", lambda: state.restarts)


def _no_scores(state: ServerState, model: str) -> Response | None:
    reason = state.unready()
    if reason is not None:
        return _not_ready(reason)
    if state.facts is not None and model not in state.facts.models:
        return error_response(404, f"no model {model!r} here; there is: {', '.join(state.facts.models)}", "not_found")
    return None


def _not_ready(reason: str | None) -> Response:
    """The refusal of a request that reached no engine: the guard lets it through, or it has just gone."""
    refusal = not_ready(reason or "loading the model")
    body = refusal.body()
    return Response(body, refusal.status, {name.decode(): value.decode() for name, value in refusal.head(body)})


async def _metrics(state: ServerState, scope: Message, receive: Receive, send: Send) -> None:
    """vLLM's metrics, while there are any, and ours."""
    if state.openai is None:
        await Response(state.metrics(), media_type="text/plain; version=0.0.4")(scope, receive, send)
        return

    async def append(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, value) for name, value in message["headers"] if name != b"content-length"]
            message = {**message, "headers": headers}
        elif not message.get("more_body"):
            message = {**message, "body": message.get("body", b"") + state.metrics()}
        await send(message)

    # Compressed bytes could not be appended to.
    plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    await state.openai({**scope, "headers": plain}, receive, append)


def _openai_routes(state: ServerState) -> Asgi:
    async def route(scope: Message, receive: Receive, send: Send) -> None:
        reason = state.unready()
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/metrics":
            await _metrics(state, scope, receive, send)
        elif reason is None and state.openai is not None:
            await state.openai(scope, receive, send)
        elif scope["type"] == "http":
            await _not_ready(reason)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1013})

    return route
