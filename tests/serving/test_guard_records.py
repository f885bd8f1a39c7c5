"""What the guard tells of requests: the access log, usage, metrics, request ids."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.guard_stub import MODEL, bench, play


def test_access_log_can_be_replayed_and_holds_no_prompt(tmp_path: Path) -> None:
    async def ask(**settings: Any) -> tuple[httpx.Response, dict[str, Any]]:
        async with bench(tmp_path, **settings) as served:
            headers = {"x-request-id": "mine-1"}
            body = {"prompt": "secret words", "max_tokens": 7, "stream": True}
            answer = await served.client.post("/v1/completions", json=body, headers=headers)
            return answer, served.lines()[-1]

    answer, line = play(ask())
    assert answer.headers["x-request-id"] == "mine-1"
    wanted = {"id": "mine-1", "key": "-", "route": "/v1/completions", "status": 200, "stream": True, "max_tokens": 7}
    assert line.items() >= wanted.items()
    assert line.items() >= {"prompt_tokens": 12, "completion_tokens": 7, "model": MODEL, "client_gone": False}.items()
    assert 0 <= line["queue_seconds"] <= line["first_seconds"] <= line["last_seconds"] <= line["seconds"]
    assert line["arrived"] > 1e9
    assert "secret" not in json.dumps(line)
    assert play(ask(log_prompts=True))[1]["prompt"] == "secret words"


@pytest.mark.parametrize("wild", ["a b", "x" * 200, 'a"b', ""])
def test_wild_request_ids_are_replaced(tmp_path: Path, wild: str) -> None:
    async def ask() -> httpx.Response:
        async with bench(tmp_path) as served:
            return await served.client.get("/live", headers={"x-request-id": wild})

    assert len(play(ask()).headers["x-request-id"]) == 32


def test_usage_is_counted_and_hidden_from_streams_that_did_not_ask(tmp_path: Path) -> None:
    async def ask() -> None:
        async with bench(tmp_path) as served:
            silent = await served.complete(stream=True, max_tokens=3)
            assert "usage" not in silent.text
            assert silent.text.count("data: ") == 4
            told = await served.complete(stream=True, max_tokens=3, stream_options={"include_usage": True})
            assert '"completion_tokens": 3' in told.text
            assert [line["completion_tokens"] for line in served.lines()] == [3, 3]

    play(ask())


def test_metrics_count_every_request_once(tmp_path: Path) -> None:
    async def ask() -> dict[str, float]:
        async with bench(tmp_path) as served:
            for number in range(3):
                await served.complete(stream=number == 0, max_tokens=4)
            await served.complete(n=0)
            await served.client.get("/wp-admin.php")
            return served.samples()

    samples = play(ask())
    labels = 'key="-",route="/v1/completions"'
    assert samples[f'mtnlg_requests_total{{{labels},status="200"}}'] == 3
    assert samples[f'mtnlg_requests_total{{{labels},status="400"}}'] == 1
    assert samples['mtnlg_requests_total{key="-",route="other",status="404"}'] == 1
    assert samples[f"mtnlg_prompt_tokens_total{{{labels}}}"] == 15
    assert samples[f"mtnlg_completion_tokens_total{{{labels}}}"] == 12
    assert samples[f"mtnlg_admission_wait_seconds_count{{{labels}}}"] == 3
    assert samples[f"mtnlg_time_to_first_token_seconds_count{{{labels}}}"] == 3
    assert samples[f"mtnlg_time_per_token_seconds_count{{{labels}}}"] == 1
    assert f"mtnlg_in_flight_requests{{{labels}}}" not in samples
