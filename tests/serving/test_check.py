"""The client of `--check`, against small servers on a real port."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from foundation.errors import UserError
from serving.check import check_server
from serving.server import listening_socket

EVENT = 'data: {"choices": [{"text": "%s"}]}\n\n'


def app_that_streams(*lines: str, status: int = 200) -> FastAPI:
    app = FastAPI()
    asked: list[int] = []

    @app.get("/ready")
    async def ready() -> JSONResponse:
        asked.append(1)
        return JSONResponse({"reason": "loading"}, 200 if len(asked) > 2 else 503)

    @app.post("/v1/completions")
    async def completions() -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            for line in lines:
                yield line

        return StreamingResponse(events(), status, media_type="text/event-stream")

    return app


def check(app: FastAPI) -> int:
    async def run() -> int:
        with listening_socket("127.0.0.1", 0) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
            with contextlib.ExitStack() as stack:
                task = asyncio.create_task(server.serve(sockets=[listener]))
                stack.callback(setattr, server, "should_exit", True)
                pieces = await check_server(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", "Once")
            await task
            return pieces

    return asyncio.run(run())


def test_text_is_printed_after_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(app_that_streams(EVENT % " upon", EVENT % " a time", "data: [DONE]\n\n")) == 2
    assert capsys.readouterr().out == "Once upon a time\n"


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ([EVENT % " upon"], 200, "broke off"),
        (["data: [DONE]\n\n"], 200, "no text"),
        (['data: {"error": {"message": "engine died"}}\n\n'], 200, "engine died"),
        (["no such\nmodel"], 404, "HTTP 404: no such model"),
    ],
)
def test_failure_is_one_line(lines: list[str], status: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check(app_that_streams(*lines, status=status))
    assert "\n" not in str(caught.value)


def test_nobody_listens() -> None:
    with pytest.raises(UserError, match="check failed: ConnectError"):
        asyncio.run(check_server("http://127.0.0.1:9", "m", "Once"))
