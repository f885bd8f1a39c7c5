"""The guard before the real engine: keys, metrics, and requests that must do no harm."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.keys import add_key
from tests.serving.bad_requests import BAD_REQUESTS
from tests.serving.running_server import END_SECONDS, RunningServer, running_server

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


def complete(server: RunningServer, key: str | None, **changes: Any) -> httpx.Response:
    body = {"model": "vllm1", "prompt": "the", "max_tokens": 8, "temperature": 0, **changes}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=END_SECONDS)


def test_keys_metrics_and_log(models: Path, tmp_path: Path) -> None:
    keys, log = tmp_path / "keys.json", tmp_path / "access.jsonl"
    key = add_key(keys, "alice", requests_per_minute=600)
    with running_server(str(models / "vllm1"), "--keys", str(keys), "--access-log", str(log)) as server:
        assert complete(server, None).status_code == 401
        assert complete(server, "mtnlg-wrong").status_code == 401
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        assert httpx.get(f"{server.url}/ready").status_code == 200
        answer = complete(server, key)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 8
        metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {key}"}).text
        assert "vllm:generation_tokens_total" in metrics
        assert 'key="alice"' in metrics
        assert server.stop() == 0
        printed = "".join(server.output)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["status"] for entry in entries if entry["path"] == "/v1/completions"] == [401, 401, 200]
    assert key not in printed + log.read_text()


def test_bad_requests_are_refused_and_do_no_harm(models: Path, tmp_path: Path) -> None:
    with running_server(str(models / "vllm1"), "--access-log", str(tmp_path / "access.jsonl")) as server:
        before = complete(server, None).json()["choices"][0]["text"]
        with httpx.Client(base_url=server.url, timeout=END_SECONDS) as client:
            for bad in BAD_REQUESTS:
                answer = client.request(bad.method, bad.path, content=bad.body, headers=bad.headers)
                assert answer.status_code == bad.status, (bad.name, answer.text)
                assert bad.word in answer.json()["error"]["message"]
        assert complete(server, None).json()["choices"][0]["text"] == before
