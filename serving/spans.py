"""Spans of requests, made with OpenTelemetry. Imported only where traces are made (`serving.tracing`).

vLLM makes its own spans through the process's one tracer provider, which is ours: they share a queue, an exporter and a
resource, and become children of the request's span by the W3C header that it is handed.
"""

import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes, AttributeValue

from serving.guard.asgi import Headers, header_values
from serving.guard.record import Record
from serving.tracing import FLUSH_SECONDS, GRPC, TraceEndpoint

_HEADERS = (b"traceparent", b"tracestate")
# Asked every few seconds by those who watch; traced only when the asker traces.
_QUIET_ROUTES = frozenset({"/live", "/ready", "/metrics", "page"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
# Why a stream whose status was 200 failed after all, through no fault of the client.
_BROKEN_OFF = ("deadline_exceeded", "engine_failed", "internal_error", "shutdown", "stream_error")
_VLLM_REQUEST = "llm_request"
_LONGEST_PATH = 200
_SHORTEST_WAIT = 0.001  # seconds in the queue that are worth a span
_NANOSECONDS = 1e9


def export_to(endpoint: TraceEndpoint) -> "Tracing":
    """Traces that go to a collector: of everything in this process, and in those that it forks."""
    provider = exporting_provider(endpoint)
    trace.set_tracer_provider(provider)
    # vLLM offers a provider of its own at every start of an engine, which is refused with a warning.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    return Tracing(provider)


def exporting_provider(endpoint: TraceEndpoint) -> TracerProvider:
    """Exports in the background and from a bounded queue: what the collector cannot take is dropped.

    The sampler, the queue, headers, certificates and the resource are those of OpenTelemetry's `OTEL_*` variables.
    """
    provider = TracerProvider(shutdown_on_exit=False)
    provider.sampler = _WithoutProbes(provider.sampler)
    provider.add_span_processor(BatchSpanProcessor(_ProcessExporter(lambda: _exporter(endpoint))))
    return provider


class Tracing:
    """An observer of the guard's that makes a span of each request."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("mtnlg.serving", importlib.metadata.version("mtnlg"))
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: Record, headers: Headers) -> "RequestSpan | None":
        """Start a request's span, under the client's where it sends a `traceparent`; sets the record's trace id."""
        carrier = {
            name.decode(): [value.decode("latin-1") for value in header_values(headers, name)] for name in _HEADERS
        }
        is_traced = len(carrier["traceparent"]) == 1  # W3C: several are as good as none
        if record.route in _QUIET_ROUTES and not is_traced:
            return None
        parent = self._propagator.extract(carrier) if is_traced else Context()
        method = record.method if record.method in _METHODS else "_OTHER"
        span = self._tracer.start_span(
            f"{'HTTP' if method == '_OTHER' else method} {record.route}",
            parent,
            SpanKind.SERVER,
            attributes={"http.request.method": method, "mtnlg.request.id": record.id},
            start_time=_nanoseconds(record.arrived),
        )
        record.trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        handed: dict[str, str] = {}
        self._propagator.inject(handed, trace.set_span_in_context(span, Context()))
        kept = [(name, value) for name, value in headers if name.lower() not in _HEADERS]
        kept += [(name.encode(), value.encode("latin-1")) for name, value in handed.items()]
        return RequestSpan(self._tracer, span, kept)

    def close(self) -> None:
        """Export what is left, for a few seconds at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(FLUSH_SECONDS)


class RequestSpan:
    """One request's span. `headers` are the request's with the span as their `traceparent`."""

    def __init__(self, tracer: trace.Tracer, span: Span, headers: Headers) -> None:
        self._tracer = tracer
        self._span = span
        self.headers = headers

    def end(self, record: Record) -> None:
        """Say what became of the request. Neither prompts nor answers nor keys, of which the name is told."""
        span = self._span
        if span.is_recording():
            span.set_attributes(_attributes(record))
            if record.status >= 500 or record.reason in _BROKEN_OFF:
                span.set_status(Status(StatusCode.ERROR, record.reason or None))
            self._add_wait(record)
            if record.stream and record.first_seconds is not None:
                span.add_event("first token", timestamp=_nanoseconds(record.arrived + record.first_seconds))
        span.end(_nanoseconds(record.arrived + record.seconds))

    def _add_wait(self, record: Record) -> None:
        if record.admitted_seconds is None or (record.queue_seconds or 0.0) < _SHORTEST_WAIT:
            return
        until = record.arrived + record.admitted_seconds
        start = _nanoseconds(until - (record.queue_seconds or 0.0))
        context = trace.set_span_in_context(self._span, Context())
        self._tracer.start_span("queue", context, start_time=start).end(_nanoseconds(until))


def _attributes(record: Record) -> dict[str, AttributeValue]:
    """A record in the words of OpenTelemetry's conventions for HTTP and generative AI."""
    wrong = record.reason or (str(record.status) if record.status >= 400 else None)
    found: dict[str, AttributeValue | None] = {
        "url.path": record.path[:_LONGEST_PATH],
        "http.route": record.route if record.route.startswith("/") else None,
        "http.request.body.size": record.body_bytes,
        "http.response.status_code": record.status,
        "error.type": wrong,
        "mtnlg.key.name": None if record.key == "-" else record.key,
        "mtnlg.reason": record.reason,
        "mtnlg.client_gone": record.client_gone or None,
        "mtnlg.queue.seconds": record.queue_seconds,
    }
    if record.model is not None:
        ran = record.queue_seconds is not None
        found |= {
            "gen_ai.provider.name": "vllm",
            "gen_ai.operation.name": _OPERATIONS.get(record.route, record.route),
            "gen_ai.request.model": record.model,
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.request.choice.count": None if record.choices == 1 else record.choices,
            "gen_ai.request.stream": record.stream,
            "gen_ai.response.time_to_first_chunk": record.first_seconds if record.stream else None,
            "gen_ai.usage.input_tokens": record.prompt_tokens if ran else None,
            "gen_ai.usage.output_tokens": record.completion_tokens,
        }
    return {name: value for name, value in found.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


class _WithoutProbes(Sampler):
    """The sampler that was set, but for vLLM's spans of requests that nobody sent, which prove the engine alive."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Whether the span is recorded and exported."""
        if name == _VLLM_REQUEST and not trace.get_current_span(parent_context).get_span_context().is_valid:
            return SamplingResult(Decision.DROP)
        return self._inner.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        """For those who debug."""
        return f"WithoutProbes({self._inner.get_description()})"


class _ProcessExporter(SpanExporter):
    """Makes an exporter where it is first needed, and another in each forked process: connections are not for two."""

    def __init__(self, make: Callable[[], SpanExporter]) -> None:
        self._make = make
        self._made: SpanExporter | None = None
        self._process = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch."""
        if self._made is None or self._process != os.getpid():
            self._made, self._process = self._make(), os.getpid()
        return self._made.export(spans)

    def shutdown(self) -> None:
        """End this process's exporter."""
        if self._made is not None and self._process == os.getpid():
            self._made.shutdown()


def _exporter(endpoint: TraceEndpoint) -> SpanExporter:
    if endpoint.protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint.url, insecure=not endpoint.url.startswith("https://"))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint.url)
