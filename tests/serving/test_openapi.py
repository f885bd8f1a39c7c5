"""One OpenAPI document for what two applications serve."""

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

from serving.app import ServerState, build_app


class ScoreRequest(BaseModel):
    """Of another route than ours, and called as ours is."""

    query: str


def inner_app(**options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.post("/pooling")
    async def pooling(request: ScoreRequest) -> None: ...

    @app.post("/scale_elastic_ep")
    async def scale() -> None: ...

    @app.get("/version")
    async def version() -> None:
        """vLLM's own."""

    return app


def document(state: ServerState) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/openapi.json")

    return asyncio.run(ask())


def test_routes_of_both_are_in_it_and_models_of_one_name_are_kept_apart() -> None:
    found = document(ServerState(model="m", engine_version="1", openai=inner_app())).json()
    assert found["paths"].keys() == {"/pooling", "/version", "/live", "/ready", "/v1/score"}
    assert "vLLM's own" not in str(found["paths"]["/version"])
    models = [name for name in found["components"]["schemas"] if name.endswith("ScoreRequest")]
    assert len(models) == 2


def test_ours_stand_alone_while_the_model_is_loaded() -> None:
    found = document(ServerState(model="m", engine_version="1")).json()
    assert found["paths"].keys() == {"/version", "/live", "/ready", "/v1/score"}


def test_switched_off_with_vllms() -> None:
    state = ServerState(model="m", engine_version="1", openai=inner_app(openapi_url=None))
    assert document(state).status_code == 404


def test_score_refuses_in_openai_form() -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(ServerState(model="m", engine_version="1")))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.post("/v1/score", json={"model": "m", "context": 5, "continuations": ["a"]})

    answer = asyncio.run(ask())
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("context")
