"""Requests through the guard: keys, budgets, readiness, the queue, deadlines, metrics and the access log."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.guard.settings import GuardSettings
from serving.keys import add_key, revoke_key
from tests.serving.guard_stub import CONTEXT, MODEL, Bench, Clock, bench, play, until


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_default_settings_are_those_of_the_file() -> None:
    from foundation.config import CONFIG_ROOT, load_config

    assert load_config(GuardSettings, CONFIG_ROOT / "serving" / "limits.yaml") == GuardSettings()


def test_every_route_but_probes_and_page_needs_a_key(tmp_path: Path) -> None:
    secret = add_key(tmp_path / "keys.json", "alice")

    async def ask() -> None:
        async with bench(tmp_path, keys=tmp_path / "keys.json") as served:
            for path in ("/live", "/ready", "/", "/static/page.css"):
                assert (await served.client.get(path)).status_code == 200
            for path in (
                "/metrics",
                "/docs",
                "/v1/models",
                "/static/..%2fmetrics",
                "http://server//live",
                "/live/",
                "/nowhere",
            ):
                refused = await served.client.get(path)
                assert refused.status_code == 401, path
                assert refused.headers["www-authenticate"].startswith("Bearer")
                assert error(refused)["code"] == "missing_api_key"
            assert (await served.client.post("/tokenize", json={"prompt": "a"})).status_code == 401
            assert (await served.client.post("/", json={})).status_code == 401
            assert (await served.client.get("/metrics", headers={"authorization": f"bearer {secret}"})).text
            assert served.stub.reached == 0
            assert (await served.complete(secret)).status_code == 200
            assert "authorization" not in served.stub.headers[0]

    play(ask())


def test_wrong_and_revoked_keys_are_refused_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    secret = add_key(path, "alice", models=("other",))

    async def ask() -> None:
        async with bench(tmp_path, keys=path, clock=clock) as served:
            for wrong in ("mtnlg-guess", secret[:-1], secret + "x"):
                refused = await served.complete(wrong)
                assert (refused.status_code, error(refused)["code"]) == (401, "invalid_api_key")
                assert wrong not in refused.text
            refused = await served.complete(secret, model=MODEL)
            assert (refused.status_code, error(refused)["code"]) == (403, "model_not_allowed")
            assert (await served.complete(secret)).status_code == 403  # the default model is not its own
            assert (await served.complete(secret, model="other")).status_code == 200
            revoke_key(path, "alice")
            clock.now += 1.5
            refused = await served.complete(secret, model="other")
            assert (refused.status_code, error(refused)["code"]) == (401, "revoked_api_key")
            written = served.log.read_text() + served.guard.metrics_text().decode() + caplog.text
            assert secret[6:20] not in written + "".join(capfd.readouterr())
            assert [line["key"] for line in served.lines()] == ["-"] * 3 + ["alice"] * 3 + ["-"]

    play(ask())


def test_request_and_token_budgets_name_the_limit_and_the_time(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    by_requests = add_key(path, "requests", requests_per_minute=2)
    by_tokens = add_key(path, "tokens", tokens_per_minute=100)

    async def ask() -> None:
        async with bench(tmp_path, keys=path, clock=clock) as served:
            first = await served.complete(by_requests)
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            assert (await served.complete(by_requests)).status_code == 200
            refused = await served.complete(by_requests)
            assert (refused.status_code, error(refused)["code"]) == (429, "requests_per_minute")
            assert refused.headers["retry-after"] == "30"
            clock.now += 29
            assert (await served.complete(by_requests)).status_code == 429
            clock.now += 2
            assert (await served.complete(by_requests)).status_code == 200

            assert error(await served.complete(by_tokens, max_tokens=96))["code"] == "tokens_per_minute"
            assert (await served.complete(by_tokens, max_tokens=75)).status_code == 200  # 80 used, 20 left
            refused = await served.complete(by_tokens, max_tokens=45)
            assert (refused.status_code, error(refused)["code"]) == (429, "tokens_per_minute")
            assert refused.headers["retry-after"] == "18"  # 30 more tokens at 100 a minute
            clock.now += 18.1
            assert (await served.complete(by_tokens, max_tokens=45)).status_code == 200

    play(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_not_used_is_given_back(tmp_path: Path, stream: bool) -> None:
    path, clock = tmp_path / "keys.json", Clock()
    secret = add_key(path, "alice", tokens_per_minute=100)

    async def ask() -> tuple[httpx.Response, httpx.Response]:
        async with bench(tmp_path, keys=path, clock=clock) as served:
            served.stub.piece = ""
            first = await served.complete(secret, max_tokens=20, stream=stream)
            bad = await served.client.post("/v1/fails", json={}, headers={"authorization": f"Bearer {secret}"})
            assert bad.status_code in (400, 500)
            return first, await served.complete(secret, max_tokens=70)

    first, second = play(ask())
    assert first.headers["x-ratelimit-remaining-tokens"] == "75"
    assert (first.status_code, second.status_code) == (200, 200)  # 25 used, 75 left


def test_concurrent_requests_of_a_key_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret, free = add_key(path, "alice", concurrent_requests=2), add_key(path, "bob")

    async def ask() -> None:
        async with bench(tmp_path, keys=path) as served:
            served.stub.gate = asyncio.Event()
            tasks = [asyncio.create_task(served.complete(secret)) for _ in range(2)]
            await until(lambda: served.stub.reached == 2)
            refused = await served.complete(secret)
            assert (refused.status_code, error(refused)["code"]) == (429, "concurrent_requests")
            other = asyncio.create_task(served.complete(free))
            await until(lambda: served.stub.reached == 3)
            served.stub.gate.set()
            assert {task.result().status_code for task in [*tasks, other] if await task} == {200}
            assert (await served.complete(secret)).status_code == 200

    play(ask())


def test_unready_and_draining_servers_refuse_work_alone(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            for reason, facts in [("the engine has died", served.view.facts), (None, None)]:
                served.view.reason, ready = reason, served.view.facts
                served.view.facts = facts
                refused = await served.complete()
                assert (refused.status_code, error(refused)["code"]) == (503, "not_ready")
                assert int(refused.headers["retry-after"]) > 0
                served.view.reason, served.view.facts = None, ready
            served.stub.gate = asyncio.Event()
            accepted = asyncio.create_task(served.complete())
            await until(lambda: served.stub.reached == 1)
            served.view.draining = True
            refused = await served.complete()
            assert (refused.status_code, error(refused)["code"]) == (503, "draining")
            assert refused.headers["connection"] == "close"
            assert (await served.client.get("/metrics")).status_code == 200
            served.stub.gate.set()
            assert (await accepted).status_code == 200

    play(ask())


def test_overload_is_refused_before_the_body_and_the_queue_keeps_its_place(tmp_path: Path) -> None:
    async def ask() -> None:
        limits = {"running_requests": 2, "queue_requests": 3}
        async with bench(tmp_path, admission=limits) as served:
            served.stub.gate = asyncio.Event()
            tasks = [asyncio.create_task(served.complete(seed=number)) for number in range(5)]
            await until(lambda: served.guard.admission.waiting_requests == 3)
            read: list[int] = []

            async def body() -> Any:
                read.append(1)
                yield b"x" * 1_000_000

            headers = {"content-type": "application/json", "content-length": "1000000"}
            refused = await served.client.post("/v1/completions", content=body(), headers=headers)
            assert (refused.status_code, error(refused)["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert served.stub.reached == 2
            served.stub.gate.set()
            assert [(await task).status_code for task in tasks] == [200] * 5
            assert [document["seed"] for document in served.stub.documents] == [0, 1, 2, 3, 4]
            assert served.samples()['mtnlg_refusals_total{key="-",reason="overloaded",route="/v1/completions"}'] == 1

    play(ask())


async def raw_request(served: Bench, document: dict[str, Any]) -> tuple[asyncio.Task[None], asyncio.Event, list[Any]]:
    """A request whose client can leave (set the event); what it was sent is in the list."""
    leave, sent = asyncio.Event(), []
    content = json.dumps(document).encode()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())],
    }
    return asyncio.create_task(served.guard(scope, receive, send)), leave, sent


def test_client_that_leaves_the_queue_or_the_engine_is_forgotten_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path, admission={"running_requests": 1}) as served:
            served.stub.gate = asyncio.Event()
            runs, leaves_engine, _ = await raw_request(served, {"prompt": "a", "stream": True})
            await until(lambda: served.stub.reached == 1)
            waits, leaves_queue, sent = await raw_request(served, {"prompt": "a"})
            await until(lambda: served.guard.admission.waiting_requests == 1)
            leaves_queue.set()
            await waits
            assert (served.guard.admission.waiting_requests, sent) == (0, [])
            leaves_engine.set()
            await runs
            assert (served.stub.ended, served.guard.admission.running_tokens, served.guard.requests) == (1, 0, 0)
            assert [(line["client_gone"], line["reason"]) for line in served.lines()] == [(True, "client_gone")] * 2
            assert served.lines()[0]["status"] == 499
            assert served.samples()['mtnlg_cancelled_total{key="-",route="/v1/completions"}'] == 2

    play(ask())


@pytest.mark.parametrize("stream", [False, True])
def test_deadline_ends_a_request_and_says_so(tmp_path: Path, stream: bool) -> None:
    async def ask() -> tuple[httpx.Response, Bench]:
        async with bench(tmp_path, times={"request_seconds": 0.2}) as served:
            served.stub.gate = asyncio.Event()
            answer = await served.complete(stream=stream)
            assert (served.stub.ended, served.guard.admission.running_requests) == (1, 0)
            return answer, served

    answer, served = play(ask())
    if stream:
        assert answer.status_code == 200
        last = answer.text.split("\n\n")[-3]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.status_code == 504
        assert error(answer)["code"] == "deadline_exceeded"
    assert served.lines()[0]["reason"] == "deadline_exceeded"
    assert served.samples()['mtnlg_deadline_exceeded_total{key="-",route="/v1/completions"}'] == 1


def test_deadline_holds_in_the_queue_too(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path, times={"request_seconds": 2.0}, admission={"running_requests": 1}) as served:
            assert (await served.complete()).status_code == 200
            assert served.guard.admission.enter_at_once("somebody", 1)
            answer = await served.complete()
            assert (answer.status_code, error(answer)["code"]) == (504, "deadline_exceeded")
            assert served.stub.reached == 1
            assert (served.guard.admission.waiting_requests, served.guard.admission.running_requests) == (0, 1)

    play(ask())


def test_request_that_is_cancelled_anywhere_leaves_nothing_behind(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path, admission={"running_requests": 1}) as served:
            served.stub.gate = asyncio.Event()
            tasks = len(asyncio.all_tasks())
            for turns in range(30):
                first, _, _ = await raw_request(served, {"prompt": "a", "stream": True})
                second, _, _ = await raw_request(served, {"prompt": "b"})
                for _ in range(turns):
                    await asyncio.sleep(0)
                second.cancel()
                first.cancel()
                await asyncio.wait({first, second})
                admission = served.guard.admission
                assert (admission.running_requests, admission.waiting_requests, served.guard.requests) == (0, 0, 0)
            await until(lambda: len(asyncio.all_tasks()) == tasks)

    play(ask())


def test_open_ends_are_closed_before_the_engine_sees_them(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path, limits={"default_chat_max_tokens": 500}) as served:
            await served.complete()
            messages = [{"role": "user", "content": "hello"}]
            await served.client.post("/v1/chat/completions", json={"messages": messages})
            await served.complete(max_tokens=None, prompt=["a" * 100, "b"], n=2)
            assert [document["max_tokens"] for document in served.stub.documents] == [
                16,
                CONTEXT - 18,
                16,
            ]  # "user hello", 8 for the template
            assert (served.lines()[2]["choices"], served.lines()[2]["prompt_tokens"]) == (4, 101)
            refused = await served.complete(max_tokens=CONTEXT - 4)
            assert error(refused)["code"] == "context_length_exceeded"
            assert (await served.complete(max_tokens=CONTEXT - 5)).status_code == 200

    play(ask())


def test_request_that_never_fits_is_told_so(tmp_path: Path) -> None:
    async def ask() -> httpx.Response:
        async with bench(tmp_path, admission={"running_tokens": 100}) as served:
            return await served.complete(n=8)

    answer = play(ask())
    assert (answer.status_code, error(answer)["code"]) == (400, "request_too_large")


def test_failing_application_is_an_error_of_openai_form_and_frees_its_place(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            answer = await served.client.post("/v1/fails", json={"input": "a"})
            assert answer.status_code == 500
            assert served.guard.admission.running_requests == 0
            assert (await served.complete()).status_code == 200

    play(ask())
