"""The routes in front of vLLM's, with a stand-in for the engine."""

import asyncio
import os
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from serving.app import ServerState, build_app
from serving.engine_options import prepare_environment
from serving.processes import private_temporary_folder


class FakeEngine:
    errored = False

    def shutdown(self, timeout: float | None = None) -> None:
        self.errored = True


def fake_openai() -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, str]:
        return {"object": "list"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": "vLLM's own"}

    return app


def get(state: ServerState, path: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(state))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get(path)

    return asyncio.run(ask())


@pytest.fixture
def state() -> ServerState:
    return ServerState(model="m", engine_version="1.2", engine=FakeEngine(), openai=fake_openai())


def test_ready_server_answers_everything(state: ServerState) -> None:
    assert get(state, "/live").status_code == 200
    assert get(state, "/ready").status_code == 200
    assert get(state, "/v1/models").json() == {"object": "list"}
    assert get(state, "/version").json().items() >= {"vllm": "1.2", "model": "m"}.items()


def test_loading_draining_and_dead_are_alive_but_not_ready(state: ServerState) -> None:
    loading = ServerState(model="m", engine_version="1.2", engine=FakeEngine())
    draining = ServerState(model="m", engine_version="1.2", engine=FakeEngine(), openai=fake_openai(), draining=True)
    assert state.engine is not None
    state.engine.shutdown()
    for unready, reason in [(loading, "loading the model"), (draining, "shutting down"), (state, "engine has died")]:
        assert get(unready, "/live").status_code == 200
        answer = get(unready, "/ready")
        assert answer.status_code == 503
        assert reason in answer.json()["reason"]
        refused = get(unready, "/v1/models")
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert reason in refused.json()["error"]["message"]


def test_environment_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_CPU_KVCACHE_SPACE": "3", "OMP_NUM_THREADS": "7"})
    prepare_environment(2, [], cpu=True)
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_environment_of_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    prepare_environment(2, [], cpu=False)
    assert "VLLM_CPU_KVCACHE_SPACE" not in os.environ
    assert "OMP_NUM_THREADS" not in os.environ


def test_temporary_folder_goes_with_what_was_left_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp")  # noqa: S108
    with private_temporary_folder():
        folder = Path(os.environ["TMPDIR"])
        (folder / "left").touch()
    assert not folder.exists()
    assert os.environ["TMPDIR"] == "/tmp"  # noqa: S108
