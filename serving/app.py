"""The HTTP application: whether the server lives and is ready, its version, and vLLM's OpenAI routes."""

import importlib.metadata
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from serving.engine import Engine
from serving.page_routes import page_router

_RETRY_SECONDS = "5"

Message = MutableMapping[str, Any]
Asgi = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


# An engine that has made no token for so long is not ready, whatever it says; the supervisor probes it long before.
_STALE_SECONDS = 10.0


@dataclass
class ServerState:
    """What the server knows of itself. `openai` is set while the engine makes tokens; `last_token` is when it did."""

    model: str
    engine_version: str
    engine: Engine | None = None
    openai: Asgi | None = None
    draining: bool = False
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

    @app.get("/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/ready")
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
    app.mount("/", _openai_routes(state))
    return app


def _openai_routes(state: ServerState) -> Asgi:
    async def route(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        reason = state.unready()
        if reason is None and state.openai is not None:
            await state.openai(scope, receive, send)
        elif scope["type"] == "http":
            error = {"message": f"not ready: {reason}", "type": "unavailable", "param": None, "code": 503}
            response = JSONResponse({"error": error}, 503, headers={"Retry-After": _RETRY_SECONDS})
            await response(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1013})

    return route
