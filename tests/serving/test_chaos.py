"""Load, a killed worker, clients that leave, an end under load: every request is answered and nothing is left."""

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest
import yaml

from tests.serving.chaos_client import Crowd, Seen
from tests.serving.running_server import START_SECONDS, RunningServer, running_server

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

MODEL = "vllm2"
REQUESTS = 500
LAST = 60  # of them are under way when SIGTERM comes
ADMISSION = {"running_requests": 16, "queue_requests": 24}
SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - where POSIX shared memory is
SAMPLE = re.compile(r"^(mtnlg_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the server's temporary files; its path is short, for sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


class Watched:
    """A server's processes and shared memory, all that there ever were of them."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.processes: set[psutil.Process] = set()
        self.shared: set[str] = set()

    def look(self) -> list[psutil.Process]:
        """The processes that there are now."""
        living = self.server.descendants()
        self.processes |= set(living)
        for process in living:
            try:
                paths = {entry.path for entry in process.memory_maps()}
            except psutil.Error:
                continue
            self.shared |= {path for path in paths if path.startswith(SHARED_MEMORY) and "deleted" not in path}
        return living

    def memory(self) -> tuple[int, int]:
        """Bytes of the server, and of all its processes with shared pages counted once."""
        own = psutil.Process(self.server.process.pid)
        return own.memory_info().rss, sum(one.memory_full_info().pss for one in [own, *self.look()])


def metrics(server: RunningServer) -> dict[str, Counter[str]]:
    """Our metrics of completions: by name, then by status or reason."""
    found: dict[str, Counter[str]] = {}
    for name, labels, value in SAMPLE.findall(httpx.get(f"{server.url}/metrics").text):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if pairs.get("route") == "/v1/completions":
            found.setdefault(name, Counter())[pairs.get("status", pairs.get("reason", ""))] += int(float(value))
    return found


def gauges(server: RunningServer) -> list[float]:
    """What is under way, by every gauge that tells it."""
    text = httpx.get(f"{server.url}/metrics").text
    names = ("queue_requests", "queue_tokens", "running_requests", "running_tokens")
    found = [re.search(rf"^mtnlg_{name} (\S+)$", text, re.MULTILINE) for name in names]
    values = [float(match[1]) for match in found if match is not None]
    assert len(values) == len(names)
    return [*values, sum(metrics(server)["mtnlg_in_flight_requests"].values())]


async def until(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


def is_ready(server: RunningServer) -> bool:
    return httpx.get(f"{server.url}/ready").status_code == 200


def has_said(server: RunningServer, words: str) -> bool:
    return any(words in line for line in server.output)


async def kill_a_worker(crowd: Crowd, watched: Watched) -> None:
    """SIGKILL a process of the engine in the middle of the load; returns when the engine is back."""
    await until(lambda: len(crowd.seen) > (REQUESTS - LAST) // 3)
    workers = [process for process in watched.look() if "Worker" in " ".join(process.cmdline())]
    workers[0].kill()
    await until(lambda: has_said(watched.server, "starting it again"))
    refused = httpx.post(f"{watched.server.url}/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "new"})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    error = refused.json()["error"]
    crowd.seen.append(Seen("new", 503, "error", error["message"], "5"))
    await until(lambda: has_said(watched.server, "the engine is back"))


def entries(log: Path) -> dict[str, dict[str, Any]]:
    """The access log's lines about completions, by the request's id."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = {line["id"]: line for line in lines if line["route"] == "/v1/completions"}
    assert len(found) == sum(line["route"] == "/v1/completions" for line in lines)
    return found


def assert_same(seen: list[Seen], log: Path) -> None:
    """Every request ended well or with a clear error, and the log has each once and as its client saw it."""
    assert {one.end for one in seen} <= {"whole", "error", "left"}, Counter(one.end for one in seen)
    lines = entries(log)
    assert lines.keys() == {one.id for one in seen}
    for one in seen:
        line = lines[one.id]
        assert line["status"] == one.status, (one, line)
        if one.end == "whole":
            assert line.get("reason") is None, (one, line)
        elif one.end == "error":
            assert line["reason"], (one, line)


def assert_counted(server: RunningServer, log: Path) -> None:
    lines, found = list(entries(log).values()), metrics(server)
    assert found["mtnlg_requests_total"] == Counter(str(line["status"]) for line in lines)
    assert found["mtnlg_refusals_total"] == Counter(line["reason"] for line in lines if line.get("reason"))
    assert sum(found["mtnlg_cancelled_total"].values()) == sum(line["client_gone"] for line in lines)


async def play(server: RunningServer, watched: Watched, log: Path) -> list[Seen]:
    """What became of every request; the server is about to end then."""
    crowd = Crowd(server.url, MODEL)
    await crowd.ask(150, "warm")
    await until(lambda: not any(gauges(server)))
    before = watched.memory()
    async with asyncio.TaskGroup() as group:
        group.create_task(crowd.ask(REQUESTS - LAST, "load"))
        group.create_task(kill_a_worker(crowd, watched))
    await until(lambda: is_ready(server) and not any(gauges(server)))
    assert_same(crowd.seen, log)
    assert_counted(server, log)
    ends = Counter((one.status, one.end) for one in crowd.seen)
    assert ends[(429, "error")] > 0, ends
    assert ends[(503, "error")] > 0, ends
    assert ends[(200, "left")] >= (150 + REQUESTS - LAST) // 10, ends
    after = watched.memory()
    print(f"memory before {before} after {after}; {ends}")
    for was, now in zip(before, after, strict=True):
        assert now <= 1.1 * was
    await end_under_load(server, crowd)
    return crowd.seen


async def end_under_load(server: RunningServer, crowd: Crowd) -> None:
    """SIGTERM while requests run and wait; those are the last of the load."""
    last = Crowd(server.url, MODEL, concurrency=LAST, patient=False, tokens=90)
    asking = asyncio.create_task(last.ask(LAST, "last"))
    await until(lambda: len(last.seen) + gauges(server)[-1] >= LAST)
    server.process.terminate()
    await asking
    crowd.seen += last.seen


def test_nothing_is_lost_and_nothing_is_left(models: Path, tmp_path: Path, temporary: Path) -> None:
    limits, log = tmp_path / "limits.yaml", tmp_path / "access.jsonl"
    limits.write_text(yaml.safe_dump({"admission": ADMISSION}))
    options = ("--limits", str(limits), "--access-log", str(log))
    with running_server(str(models / MODEL), *options) as server:
        watched = Watched(server)
        seen = asyncio.run(play(server, watched, log))
        assert server.process.wait(90) == 0
    assert_same(seen, log)  # a client has its answer a moment before the log has its line
    after = "".join(server.output).rpartition("the engine is back")[2]  # before it, vLLM tells how its engine died
    assert "Traceback" not in after
    _, alive = psutil.wait_procs(list(watched.processes), timeout=10)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    assert {path for path in watched.shared if Path(path).exists()} == set()
    assert list(temporary.iterdir()) == []
