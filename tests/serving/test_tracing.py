"""Traces: where they go, what is in them and what is not, and that vLLM's join ours."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from foundation.errors import UserError
from serving.keys import add_key
from serving.tracing import TraceEndpoint, find_endpoint, start_tracing, tracing
from tests.serving.collector import Collector, attributes, grpc_collector, http_collector
from tests.serving.guard_stub import Bench, bench
from tests.serving.running_server import END_SECONDS, running_server

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from serving.spans import Tracing, exporting_provider

SECRET = "the-launch-code-is-4711"  # in a prompt
CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def observer(spans: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider)


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        (None, {}, None),
        ("http://c:4317", {}, TraceEndpoint("http://c:4317", "grpc")),
        ("c:4317", {}, TraceEndpoint("c:4317", "grpc")),
        ("http://c:4318", {}, TraceEndpoint("http://c:4318/v1/traces", "http/protobuf")),
        ("c:4318", {}, TraceEndpoint("http://c:4318/v1/traces", "http/protobuf")),
        ("https://c/custom/path", {}, TraceEndpoint("https://c/custom/path", "http/protobuf")),
        (None, {"ENDPOINT": "http://c:4318"}, TraceEndpoint("http://c:4318/v1/traces", "http/protobuf")),
        (None, {"ENDPOINT": "http://c:4318/base/"}, TraceEndpoint("http://c:4318/base/v1/traces", "http/protobuf")),
        (None, {"ENDPOINT": "https://c"}, TraceEndpoint("https://c/v1/traces", "http/protobuf")),
        (None, {"ENDPOINT": "http://c:4317"}, TraceEndpoint("http://c:4317", "grpc")),
        ("http://a:4317", {"TRACES_ENDPOINT": "http://b:4317"}, TraceEndpoint("http://a:4317", "grpc")),
        (None, {"TRACES_ENDPOINT": "http://b:4317", "ENDPOINT": "http://c"}, TraceEndpoint("http://b:4317", "grpc")),
        ("http://c:4318", {"PROTOCOL": "grpc"}, TraceEndpoint("http://c:4318", "grpc")),
        (
            "http://c:9",
            {"TRACES_PROTOCOL": "http/protobuf", "PROTOCOL": "grpc"},
            TraceEndpoint("http://c:9/v1/traces", "http/protobuf"),
        ),
    ],
)
def test_endpoint(option: str | None, environ: dict[str, str], expected: TraceEndpoint | None) -> None:
    assert find_endpoint(option, {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()}) == expected


def test_environment_can_forbid_traces() -> None:
    assert find_endpoint("http://c:4317", {"OTEL_SDK_DISABLED": "true"}) is None
    assert find_endpoint("http://c:4317", {"OTEL_TRACES_EXPORTER": "none"}) is None
    with pytest.raises(UserError, match="OTEL_TRACES_EXPORTER=zipkin"):
        find_endpoint("http://c:4317", {"OTEL_TRACES_EXPORTER": "zipkin"})
    with pytest.raises(UserError, match="http/json is no protocol"):
        find_endpoint("http://c:4317", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    with pytest.raises(UserError, match="no collector's address"):
        find_endpoint("http://c:port", {})


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "serving.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UserError, match=r"pip install 'mtnlg\[tracing\]'"):
        start_tracing(argparse.Namespace(otlp_traces_endpoint="http://localhost:4317"))


def test_nothing_is_made_without_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"OTEL_SDK_DISABLED": "true"})
    options = argparse.Namespace(otlp_traces_endpoint="http://localhost:4317")
    with tracing(options) as observer:
        assert observer is None
    assert options.otlp_traces_endpoint is None  # so that vLLM makes none either


def test_span_says_what_happened(tmp_path: Path, spans: InMemorySpanExporter, observer: Tracing) -> None:
    keys = tmp_path / "keys.json"
    secret = add_key(keys, "alice")

    async def run() -> Bench:
        async with bench(tmp_path, keys=keys, observer=observer) as made:
            answer = await made.complete(secret, prompt=SECRET, max_tokens=7, stream=True)
            assert answer.status_code == 200
        return made

    made = asyncio.run(run())
    span = only(spans, "POST /v1/completions")
    found = dict(span.attributes or {})
    assert span.kind is SpanKind.SERVER
    assert span.parent is None
    assert (
        found.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "http.response.status_code": 200,
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "stub",
            "gen_ai.request.max_tokens": 7,
            "gen_ai.usage.input_tokens": len(SECRET),
            "gen_ai.usage.output_tokens": 7,
            "mtnlg.key.name": "alice",
        }.items()
    )
    [line] = made.lines()
    assert line["trace_id"] == f"{span.context.trace_id:032x}"
    assert found["mtnlg.request.id"] == line["id"]
    [event] = span.events
    assert event.name == "first token"
    assert span.start_time <= event.timestamp <= span.end_time
    assert span.start_time == int(line["arrived"] * 1e9) or abs(span.start_time / 1e9 - line["arrived"]) < 1e-5
    assert SECRET not in span.to_json()
    assert secret not in span.to_json()


def test_engine_gets_the_span_as_its_parent(tmp_path: Path, spans: InMemorySpanExporter, observer: Tracing) -> None:
    async def run() -> list[dict[str, str]]:
        async with bench(tmp_path, observer=observer) as made:
            head = {"traceparent": CLIENT, "tracestate": "vendor=1"}
            await made.client.post("/v1/completions", json={"prompt": "a"}, headers=head)
            await made.client.post("/v1/completions", json={"prompt": "a"}, headers={"traceparent": "00-nonsense"})
        return made.stub.headers

    seen, other = asyncio.run(run())
    span, second = spans.get_finished_spans()
    _, trace_id, parent_id, _ = CLIENT.split("-")
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace_id, parent_id)
    assert seen["traceparent"] == f"00-{trace_id}-{span.context.span_id:016x}-01"
    assert seen["tracestate"] == "vendor=1"
    assert second.parent is None
    assert other["traceparent"].startswith(f"00-{second.context.trace_id:032x}-{second.context.span_id:016x}-")


def test_refused_late_and_waiting_requests(tmp_path: Path, spans: InMemorySpanExporter, observer: Tracing) -> None:
    async def run() -> None:
        admission = {"running_requests": 1, "queue_requests": 1}
        async with bench(tmp_path, observer=observer, admission=admission, times={"request_seconds": 1}) as made:
            made.stub.gate = asyncio.Event()
            first = asyncio.create_task(made.complete())
            await asyncio.sleep(0.05)
            second = asyncio.create_task(made.complete(max_tokens=3))
            await asyncio.sleep(0.05)
            assert (await made.complete()).status_code == 429
            assert (await made.client.post("/v1/completions", content=b"{")).status_code in (400, 415, 429)
            made.stub.gate.set()
            assert {(await first).status_code, (await second).status_code} == {200}
            made.stub.gate.clear()
            assert (await made.complete()).status_code == 504

    asyncio.run(run())
    found = {dict(span.attributes or {}).get("mtnlg.reason"): span for span in spans.get_finished_spans()}
    refused, late = found["overloaded"], found["deadline_exceeded"]
    assert (refused.attributes or {})["error.type"] == "overloaded"
    assert "gen_ai.usage.input_tokens" not in (refused.attributes or {})
    assert refused.status.status_code is StatusCode.UNSET  # the client's fault, as far as HTTP is concerned
    assert late.status.status_code is StatusCode.ERROR
    queue = only(spans, "queue")
    [waited] = [span for span in spans.get_finished_spans() if queue.parent and span.context == queue.parent]
    assert (waited.attributes or {})["gen_ai.usage.output_tokens"] == 3
    assert waited.start_time < queue.start_time < queue.end_time <= waited.end_time


def test_probes_are_quiet_and_odd_methods_bounded(
    tmp_path: Path, spans: InMemorySpanExporter, observer: Tracing
) -> None:
    async def run() -> None:
        async with bench(tmp_path, observer=observer) as made:
            for path in ("/live", "/ready", "/metrics", "/"):
                await made.client.get(path)
            assert not spans.get_finished_spans()
            await made.client.get("/ready", headers={"traceparent": CLIENT})
            await made.client.request("BREW", "/v1/models")

    asyncio.run(run())
    assert [span.name for span in spans.get_finished_spans()] == ["GET /ready", "HTTP /v1/models"]


def ask(observer: Tracing, folder: Path, times: int = 1, **fields: Any) -> list[int]:
    async def run() -> list[int]:
        async with bench(folder, observer=observer) as made:
            return [(await made.complete(**fields)).status_code for _ in range(times)]

    return asyncio.run(run())


@pytest.mark.parametrize(("protocol", "collector"), [("http/protobuf", http_collector), ("grpc", grpc_collector)])
def test_spans_arrive_without_a_prompt(tmp_path: Path, protocol: str, collector: Any) -> None:
    with collector() as received:
        observer = Tracing(exporting_provider(TraceEndpoint(received.url, protocol)))
        assert ask(observer, tmp_path, prompt=SECRET, user=SECRET) == [200]
        observer.close()
        [span] = received.spans()
    assert span.name == "POST /v1/completions"
    assert attributes(span)["gen_ai.usage.input_tokens"] == len(SECRET)
    assert SECRET.encode() not in b"".join(received.bodies)


def test_collector_that_hangs_or_is_not_there_costs_spans_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setattr("serving.spans.FLUSH_SECONDS", 0.1)
    with http_collector() as received:
        received.answers.clear()
        observer = Tracing(exporting_provider(TraceEndpoint(received.url, "http/protobuf")))
        assert ask(observer, tmp_path, 20) == [200] * 20
        observer.close()  # returns although nothing was answered
        assert not received.answers.is_set()
    gone = Tracing(exporting_provider(TraceEndpoint(received.url, "http/protobuf")))
    assert ask(gone, tmp_path, 20) == [200] * 20
    gone.close()
    assert len(received.spans()) <= 4 + 2  # what the queue holds, and what was being sent


@pytest.mark.slow
@pytest.mark.parametrize("collector", [http_collector, grpc_collector])
def test_spans_of_the_engine_are_children(models: Path, tmp_path: Path, collector: Any) -> None:
    pytest.importorskip("vllm")
    log = tmp_path / "access.jsonl"
    received: Collector
    with collector() as received:
        given = (str(models / "vllm1"), "--access-log", str(log), "--otlp-traces-endpoint", received.url)
        with running_server(*given) as server:
            body = {"model": "vllm1", "prompt": SECRET, "max_tokens": 5}
            answer = httpx.post(
                f"{server.url}/v1/completions", json=body, headers={"traceparent": CLIENT}, timeout=END_SECONDS
            )
            assert answer.status_code == 200
            found = received.until(lambda spans: {"POST /v1/completions", "llm_request"} <= {s.name for s in spans})
            assert server.stop() == 0
    [ours] = [span for span in found if span.name == "POST /v1/completions"]
    [engine] = [span for span in found if span.name == "llm_request"]  # and none of the requests that prove it alive
    assert ours.parent_span_id.hex() == CLIENT.split("-")[2]
    assert (engine.trace_id, engine.parent_span_id) == (ours.trace_id, ours.span_id)
    assert attributes(engine)["gen_ai.usage.completion_tokens"] == attributes(ours)["gen_ai.usage.output_tokens"] == 5
    assert received.services() == {"mtnlg"}
    assert SECRET.encode() not in b"".join(received.bodies)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["trace_id"] for line in lines if line["path"] == "/v1/completions"] == [CLIENT.split("-")[1]]
