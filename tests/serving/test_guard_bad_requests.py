"""Every bad request gets a 4xx that says what is wrong, and the engine never hears of it."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.serving.bad_requests import BAD_REQUESTS, Bad
from tests.serving.guard_stub import bench


def test_corpus_is_large_and_its_names_are_different() -> None:
    assert len(BAD_REQUESTS) >= 100
    assert len({(bad.name, bad.body) for bad in BAD_REQUESTS}) == len(BAD_REQUESTS)


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_bad_request_is_refused_with_a_message(tmp_path: Path, bad: Bad) -> None:
    async def ask() -> tuple[httpx.Response, int, httpx.Response, list[dict[str, object]]]:
        async with bench(tmp_path) as served:
            answer = await served.client.request(bad.method, bad.path, content=bad.body, headers=bad.headers)
            reached = served.stub.reached
            return answer, reached, await served.complete(), served.lines()

    answer, reached, after, lines = asyncio.run(ask())
    assert answer.status_code == bad.status
    error = answer.json()["error"]
    assert bad.word in error["message"]
    assert len(error["message"]) < 400
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"] == lines[0]["id"]
    assert (lines[0]["status"], lines[0]["reason"]) == (bad.status, error["code"])
    assert reached == 0
    assert after.status_code == 200
