"""What the guard makes of faults: names of other hosts, an engine that is gone, a full disk, an end in between."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from foundation.errors import UserError
from serving.guard.asgi import Headers
from serving.guard.head import check_host
from serving.guard.record import AccessLog, Record
from serving.guard.refusal import Refused
from tests.serving.guard_stub import Bench, bench, play, until

FULL_DISK = Path("/dev/full")


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:8000", "127.8.9.1:1", "[::1]:8000"]
)
def test_hosts_of_this_machine(host: str) -> None:
    check_host([(b"host", host.encode())])
    check_host([])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:80:80",
        "localhost@evil.example",
        "evil.example#localhost",
        "192.168.1.5",
        "0.0.0.0",  # noqa: S104 - a browser may send it here
        "[::2]",
        "[localhost",
        "127.1",
        "2130706433",
        "",
        "\xff",
    ],
)
def test_hosts_of_others_are_misdirected(host: str) -> None:
    headers: Headers = [(b"host", host.encode("latin-1"))]
    with pytest.raises(Refused) as refusal:
        check_host(headers)
    assert (refusal.value.status, refusal.value.code) == (421, "wrong_host")


def test_only_a_local_server_looks_at_the_host(tmp_path: Path) -> None:
    async def ask(*, local_only: bool) -> list[httpx.Response]:
        async with bench(tmp_path, local_only=local_only) as served:
            served.client.base_url = httpx.URL("http://evil.example:8000")
            paths = ("/", "/ready", "/metrics")
            return [*[await served.client.get(path) for path in paths], await served.complete()]

    assert [answer.status_code for answer in play(ask(local_only=True))] == [421] * 4
    assert [answer.status_code for answer in play(ask(local_only=False))] == [200] * 4


def test_failure_of_an_engine_that_is_gone_is_503_and_says_when_to_come_back(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            served.stub.gate = asyncio.Event()
            served.stub.fails = True
            asking = asyncio.create_task(served.complete())
            await until(lambda: served.stub.reached == 1)
            served.view.reason = "the engine has died"
            served.stub.gate.set()
            answer = await asking
            assert (answer.status_code, error(answer)["code"]) == (503, "engine_failed")
            assert int(answer.headers["retry-after"]) > 0
            assert served.lines()[0]["reason"] == "engine_failed"
            assert served.guard.admission.running_requests == 0

    play(ask())


def test_what_the_model_cannot_do_is_no_failure(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            answer = await served.client.post("/v1/lacks", json={"input": "a"})
            assert (answer.status_code, error(answer)["message"]) == (400, "The model does not support this")
            assert served.lines()[0]["status"] == 400

    play(ask())


def test_failure_without_words_is_put_into_openai_form_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            served.stub.fails = True
            answer = await served.complete()
            assert (answer.status_code, error(answer)["code"]) == (500, "internal_error")
            assert served.lines()[0]["reason"] == "internal_error"

    play(ask())
    assert "RuntimeError: broken" in caplog.text


def test_stream_that_breaks_off_with_an_error_is_counted_as_such(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            served.stub.piece = 'data: {"error"'  # a text that looks like one is none
            await served.complete(stream=True)
            served.stub.error_after = 2
            answer = await served.complete(stream=True)
            assert answer.text.count('"error"') == 1
            assert [line.get("reason") for line in served.lines()] == [None, "stream_error"]

    play(ask())


def test_requests_that_cannot_be_finished_are_told_so(tmp_path: Path) -> None:
    async def end(served: Bench, asking: asyncio.Task[httpx.Response], reached: int) -> httpx.Response:
        await until(lambda: served.stub.reached == reached)
        served.guard.end_requests()
        return await asking

    async def ask() -> None:
        async with bench(tmp_path) as served:
            served.stub.gate = asyncio.Event()
            whole = await end(served, asyncio.create_task(served.complete()), 1)
            assert (whole.status_code, error(whole)["code"]) == (503, "shutdown")
            stream = await end(served, asyncio.create_task(served.complete(stream=True)), 2)
            assert stream.text.endswith("data: [DONE]\n\n")
            assert '"code": "shutdown"' in stream.text
            assert [line["reason"] for line in served.lines()] == ["shutdown"] * 2
            assert served.stub.ended == 2

    play(ask())


@pytest.mark.parametrize("path", ["/scale_elastic_ep", "/is_scaling_elastic_ep", "/abort_requests"])
def test_routes_for_operators_are_withheld(tmp_path: Path, path: str) -> None:
    async def ask() -> httpx.Response:
        async with bench(tmp_path) as served:
            return await served.client.post(path, json={"new_data_parallel_size": 1})

    answer = play(ask())
    assert (answer.status_code, error(answer)["code"]) == (404, "not_found")


def record() -> Record:
    return Record("1", 0.0, "GET", "/", "page")


@pytest.mark.skipif(not FULL_DISK.exists(), reason="no /dev/full here")
def test_full_disk_costs_log_lines_only(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog(FULL_DISK)
    for _ in range(3):
        log.write(record())
    log.close()
    assert [entry.levelno for entry in caplog.records] == [logging.ERROR]
    assert "No space left" in caplog.text


def test_line_that_was_torn_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    whole = log._file
    assert whole is not None
    write = whole.write

    class Short:
        def write(self, content: bytes) -> int:
            return write(content[:7])

    monkeypatch.setattr(log, "_file", Short())
    log.write(record())
    monkeypatch.setattr(log, "_file", whole)
    log.write(record())
    log.close()
    torn, whole = (tmp_path / "access.jsonl").read_text().splitlines()
    assert len(torn) == 7
    assert json.loads(whole)["id"] == "1"


def test_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the access log"):
        AccessLog(tmp_path / "file" / "access.jsonl")
