"""A collector of OpenTelemetry's, over HTTP or gRPC, that keeps what it gets."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAIT_SECONDS = 60


@dataclass
class Collector:
    """What came in. `answers` is cleared to let exporters wait."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)

    def take(self, body: bytes) -> bytes:
        """Keep a request and answer it."""
        self.bodies.append(body)
        self.answers.wait(WAIT_SECONDS)
        return ExportTraceServiceResponse().SerializeToString()

    def spans(self) -> list[Any]:
        """Every span that came."""
        return [
            span
            for body in list(self.bodies)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def services(self) -> set[str]:
        """The names of the services that sent spans."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return {
            attribute.value.string_value
            for request in requests
            for resource in request.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }

    def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        """The spans, once they are as wanted."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(spans := self.spans()):
            assert time.monotonic() < deadline, [span.name for span in spans]
            time.sleep(0.05)
        return spans


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    values = {item.key: item.value for item in span.attributes}
    return {name: getattr(value, value.WhichOneof("value")) for name, value in values.items()}


@contextlib.contextmanager
def http_collector() -> Iterator[Collector]:
    """A collector over HTTP on a free port."""
    collector = Collector()
    collector.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            answer = collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    try:
        yield collector
    finally:
        collector.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    """A collector over gRPC on a free port."""
    import grpc  # type: ignore[import-untyped, unused-ignore]

    collector = Collector()
    collector.answers.set()
    method = grpc.unary_unary_rpc_method_handler(lambda body, _: collector.take(body))  # bytes, as they are
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        collector.answers.set()
        server.stop(0).wait()
