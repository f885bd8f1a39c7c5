"""The load tool: what it sends, how it counts what comes back, and how it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from foundation.errors import UserError
from foundation.http_answers import retry_seconds
from serving.load.answer import Answer, EventReader, Outcome
from serving.load.calls import Call, Shape, at_random, one_after_another
from serving.load.command import add_load_command
from serving.load.load import Load, send_load
from serving.load.replay import read_access_log
from serving.load.report import percentile, summarise
from serving.load.run import Run, run_event_loop
from tests.serving.guard_stub import bench
from tests.serving.running_server import ROOT
from tests.serving.stub_openai import Stub, running_stub

BUSY = (429, "the server is at its limit", {"Retry-After": "1"})


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub(Stub()) as running:
        yield running


def mtnlg_load(*arguments: str) -> Result:
    app = typer.Typer()
    add_load_command(app)
    return CliRunner().invoke(app, arguments)


def sent(url: str, calls: list[Call], **options: Any) -> Run:
    return run_event_loop(send_load(Load(url, calls, **options), shown=False))


def ended(reader: EventReader, answer: Answer, *events: object) -> Answer:
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        reader.feed(f"data: {text}\n\n".encode())
    reader.end()
    return answer


def piece(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "finish_reason": finish, **fields}]}


def read(*events: object, choices: int = 1) -> Answer:
    answer = Answer(0, choices=choices)
    return ended(EventReader(answer, time.perf_counter()), answer, *events)


def test_closed_loop_keeps_so_many_under_way_and_counts_their_tokens(stub: Stub, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    result = mtnlg_load(
        stub.url, "--concurrency", "3", "--requests", "10", "--prompt-tokens", "5", "--max-tokens", "4",
        "--ignore-eos", "--out", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "answered  200     10" in result.stdout
    written = json.loads(out.read_text())
    assert written["summary"]["requests"] == {"answered": 10, "refused": 0, "failed": 0}
    assert written["summary"]["completion_tokens"] == 40
    assert [request["number"] for request in written["requests"]] == list(range(10))
    assert all(request["first"] <= request["last"] <= request["seconds"] for request in written["requests"])
    assert written["settings"]["concurrency"] == 3
    prompts = [tuple(request["prompt"]) for request in stub.requests]
    assert {len(prompt) for prompt in prompts} == {5}
    assert len(set(prompts)) == 10
    assert all(request["ignore_eos"] and request["max_tokens"] == 4 for request in stub.requests)


def test_concurrency_is_a_bound(stub: Stub) -> None:
    stub.pause = 0.02
    run = sent(stub.url, one_after_another(Shape(4, 4), 9), concurrency=3)
    starts = [(answer.sent, 1) for answer in run.answers]
    ends = [(answer.sent + answer.seconds, -1) for answer in run.answers]
    under_way, most = 0, 0
    for _, change in sorted(starts + ends):
        under_way += change
        most = max(most, under_way)
    assert most == 3


def test_the_same_seed_sends_the_same_at_the_same_times() -> None:
    first, again, other = (at_random(Shape(), 200, 50.0, seed) for seed in (1, 1, 2))
    assert first == again
    assert [call.at for call in first] != [call.at for call in other]
    assert 2.5 < (first[-1].at or 0) < 6.5  # 200 at 50 a second
    assert first[7].body("m", 1, ignore_eos=False) == again[7].body("m", 1, ignore_eos=False)
    assert first[7].body("m", 1, ignore_eos=False) != first[7].body("m", 2, ignore_eos=False)


def test_burst_sends_without_waiting_for_answers(stub: Stub) -> None:
    stub.pause = 0.1
    result = mtnlg_load(stub.url, "--burst", "--requests", "40", "--max-tokens", "4")
    assert result.exit_code == 0, result.output
    assert "answered  200     40" in result.stdout
    assert stub.sent == 160


def test_refusals_are_counted_with_what_they_say(stub: Stub) -> None:
    stub.refusals = [BUSY] * 3
    result = mtnlg_load(stub.url, "--requests", "8", "--concurrency", "2")
    assert result.exit_code == 0, result.output
    assert "refused   429     3       the server is at its limit" in result.stdout
    assert "Retry-After on 3 of 3 refusals for overload: 1 to 1 s" in result.stdout


def test_retry_comes_back_when_it_was_told_to(stub: Stub) -> None:
    stub.refusals = [BUSY, BUSY]
    run = sent(stub.url, one_after_another(Shape(4, 4), 1), concurrency=1, retries=2)
    (answer,) = run.answers
    assert answer.outcome is Outcome.answered
    assert answer.retry_afters == [1.0, 1.0]
    assert answer.sent >= 2.0
    figures = summarise(run)["retry_after"]
    assert (figures["refusals"], figures["came_back"], figures["then_taken"]) == (2, 2, 1)


def test_what_is_neither_answer_nor_refusal_fails_the_command(stub: Stub) -> None:
    stub.breaks_after = 2
    broken = mtnlg_load(stub.url, "--requests", "2")
    assert broken.exit_code == 1
    assert "failed    200     2" in broken.stdout
    stub.breaks_after = None
    stub.refusals = [(500, "the server failed to answer", {})]
    failed = mtnlg_load(stub.url, "--requests", "2", "--concurrency", "1")
    assert failed.exit_code == 1
    assert "failed    500     1       the server failed to answer" in failed.stdout


def test_an_answer_that_takes_too_long_is_given_up(stub: Stub) -> None:
    stub.pause = 5.0
    run = sent(stub.url, one_after_another(Shape(4, 4), 1), concurrency=1, timeout=0.3)
    assert run.answers[0].outcome is Outcome.failed
    assert run.answers[0].error == "no whole answer within 0.3 s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nope"], "has no model nope; there is: demo-vllm"),
        (["--rate", "3", "--burst"], "--rate and --burst are different ways"),
        (["--replay", "missing.jsonl"], "missing.jsonl: No such file"),
    ],
)
def test_errors_say_what_to_do(stub: Stub, arguments: list[str], message: str) -> None:
    result = mtnlg_load(stub.url, *arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1", "no server at http://127.0.0.1:1: Connection refused"),
        ("localhost:8000", "is no URL of a server"),
        ("http://me:secret@127.0.0.1:1", "put the server's key into MTNLG_API_KEY"),
    ],
)
def test_a_url_that_will_not_do(url: str, message: str) -> None:
    result = mtnlg_load(url)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert "secret" not in str(result.exception)


def test_the_key_is_sent_and_asked_for(stub: Stub) -> None:
    stub.key = "right"
    refused = mtnlg_load(stub.url)
    assert "answered 401: Unauthorized; put the server's key into MTNLG_API_KEY" in str(refused.exception)
    sent(stub.url, one_after_another(Shape(4, 4), 1), concurrency=1, api_key="right")
    assert stub.keys == ["Bearer right"]


def test_ctrl_c_reports_what_has_ended(stub: Stub, tmp_path: Path) -> None:
    stub.pause = 0.05
    code = "import typer; from serving.load.command import add_load_command as a; p = typer.Typer(); a(p); p()"
    out = tmp_path / "load.json"
    command = [sys.executable, "-c", code, stub.url, "--concurrency", "4", "--requests", "100000", "--out", str(out)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        deadline = time.monotonic() + 60
        while len(stub.requests) < 12 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "answered  200 " in output
    assert "of 100000 requests are not in these figures, 4 of them sent" in output
    written = json.loads(out.read_text())
    assert written["interrupted"]
    assert written["summary"]["requests"]["answered"] == len(written["requests"]) >= 4


def test_a_stream_is_an_answer_only_when_it_is_whole() -> None:
    whole = read(piece(text="a"), piece(text="b", finish="length"), {"choices": [], "usage": {"completion_tokens": 2}},
                 "[DONE]")  # fmt: skip
    assert (whole.outcome, whole.completion_tokens) == (Outcome.answered, 2)
    uncounted = read(piece(text="a"), piece(text="b", finish="stop"), "[DONE]")
    assert (uncounted.outcome, uncounted.completion_tokens) == (Outcome.answered, 2)
    assert read(piece(text="a")).error == "the stream broke off"
    assert read(piece(text="a"), "[DONE]").error == "the stream ended with 0 of 1 choices finished"
    half = read(piece(text="a", finish="stop"), "[DONE]", choices=2)
    assert half.error == "the stream ended with 1 of 2 choices finished"
    told = read(piece(text="a"), {"error": {"message": "the engine died"}}, "[DONE]")
    assert (told.outcome, told.error) == (Outcome.failed, "in the stream: the engine died")
    assert read("nonsense", "[DONE]").error == "an event of the stream is no piece of a completion"


def test_events_may_come_in_any_pieces() -> None:
    answer = Answer(0)
    reader = EventReader(answer, time.perf_counter())
    for byte in f"data: {json.dumps(piece(text='é', finish='stop'))}\r\n\r\n: ping\n\ndata: [DONE]\n\n".encode():
        reader.feed(bytes([byte]))
    reader.end()
    assert (answer.outcome, answer.completion_tokens) == (Outcome.answered, 1)


def test_the_first_token_is_not_the_event_that_says_who_speaks() -> None:
    answer = Answer(0)
    reader = EventReader(answer, time.perf_counter())
    reader.feed(f"data: {json.dumps(piece(delta={'role': 'assistant', 'content': ''}))}\n\n".encode())
    assert answer.first is None
    reader.feed(f"data: {json.dumps(piece(delta={'content': 'a'}))}\n\n".encode())
    assert answer.first is not None


def test_time_per_token_leaves_the_first_one_out() -> None:
    answer = Answer(0, first=1.0, last=2.0, completion_tokens=10, choices=2)
    assert answer.seconds_per_token == pytest.approx(0.25)
    assert Answer(0, first=1.0, last=1.0, completion_tokens=1).seconds_per_token is None


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) is None


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_seconds("7") == 7.0
    assert retry_seconds(None) is None
    assert retry_seconds("soon") is None
    assert retry_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_an_access_log_of_the_guard_can_be_replayed(tmp_path: Path, stub: Stub) -> None:
    async def write_log() -> Path:
        async with bench(tmp_path) as served:
            await served.complete(prompt="hello", max_tokens=3, stream=True)
            await served.complete(prompt=["ab", "cde"], max_tokens=2, n=2)
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            await served.client.post("/v1/chat/completions", json=chat)
            await served.client.get("/v1/models")
            await served.complete(prompt="")
            return served.log

    replay = read_access_log(asyncio.run(write_log()))
    assert (len(replay.calls), replay.left_out, replay.made_up) == (3, 2, 3)
    streamed, several, chat = replay.calls
    assert (streamed.at, streamed.shape) == (0.0, Shape(5, 3, 1, stream=True))
    assert several.shape == Shape(5, 2, 4, stream=False)
    assert streamed.at is not None and several.at is not None and chat.at is not None
    assert streamed.at < several.at < chat.at
    assert chat.path == "/v1/completions"  # its text is not in the log
    assert json.loads(several.body("m", 0, ignore_eos=False))["n"] == 4
    run = sent(stub.url, replay.calls)
    assert len(run.answers) == len(stub.requests) == 3
    assert [len(body["prompt"]) for body in stub.requests] == [call.shape.prompt_tokens for call in replay.calls]


def test_logged_prompts_are_sent_as_they_were(tmp_path: Path) -> None:
    async def write_log() -> Path:
        async with bench(tmp_path, log_prompts=True) as served:
            await served.complete(prompt=["ab", "cde"], max_tokens=2, n=2, stream=True)
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            await served.client.post("/v1/chat/completions", json=chat)
            return served.log

    replay = read_access_log(asyncio.run(write_log()))
    assert replay.made_up == 0
    several, chat = (json.loads(call.body("m", 0, ignore_eos=False)) for call in replay.calls)
    assert (several["prompt"], several["n"]) == (["ab", "cde"], 2)
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert replay.calls[1].path == "/v1/chat/completions"


def test_a_replay_keeps_the_times_of_the_log_or_shortens_them(tmp_path: Path) -> None:
    line = {"route": "/v1/completions", "prompt_tokens": 3, "max_tokens": 2, "choices": 1, "stream": True}
    log = tmp_path / "access.jsonl"
    log.write_text("".join(json.dumps({**line, "arrived": at}) + "\n" for at in (103.0, 100.0, 101.0)))
    assert [call.at for call in read_access_log(log).calls] == [0.0, 1.0, 3.0]
    assert [call.at for call in read_access_log(log, speed=2).calls] == [0.0, 0.5, 1.5]


@pytest.mark.parametrize(
    "line",
    [
        "mtnlg: loading demo",
        '{"route": "/v1/completions"}',
        '["a list"]',
        '{"arrived": 1, "route": "/v1/completions", "prompt_tokens": "3", "max_tokens": 1, "choices": 1}',
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    good = {"arrived": 1.0, "route": "/v1/completions", "prompt_tokens": 3, "max_tokens": 2, "choices": 1}
    log = tmp_path / "access.jsonl"
    log.write_text(f"{json.dumps(good)}\n\n{line}\n")
    with pytest.raises(UserError, match=r"access\.jsonl:3"):
        read_access_log(log)
