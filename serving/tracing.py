"""Where traces go, and whether any are made: vLLM's option and OpenTelemetry's own environment variables."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from foundation.errors import UserError

if TYPE_CHECKING:
    import argparse

    from serving.guard.observer import Observer
    from serving.spans import Tracing

GRPC, HTTP = "grpc", "http/protobuf"
FLUSH_SECONDS = 3.0  # for what is still to be exported when the server ends
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP_PORT = 4318
_GRPC_PORT = 4317
_TRACES_PATH = "/v1/traces"


@dataclass(frozen=True)
class TraceEndpoint:
    """A collector's address and the protocol it is spoken to in: `grpc` or `http/protobuf`."""

    url: str
    protocol: str


@contextlib.contextmanager
def tracing(options: "argparse.Namespace") -> "Iterator[Observer | None]":
    """Make traces during the block, if a collector is named (see `start_tracing`); export the last ones at its end."""
    traces = start_tracing(options)
    try:
        yield traces
    finally:
        if traces is not None:
            traces.close()


def start_tracing(options: "argparse.Namespace") -> "Tracing | None":
    """Begin to make traces where `--otlp-traces-endpoint`, or the environment, names a collector; else None.

    vLLM is told of the same collector through its option and the environment, and its spans go out with ours.
    Raises UserError where OpenTelemetry is not installed, or for a setting that will not do.
    """
    endpoint = find_endpoint(options.otlp_traces_endpoint, os.environ)
    if endpoint is None:
        options.otlp_traces_endpoint = None
        return None
    try:
        from serving.spans import export_to
    except ImportError as error:
        text = f"traces need OpenTelemetry ({error.name or error} is missing): pip install 'mtnlg[tracing]'"
        raise UserError(text) from None
    options.otlp_traces_endpoint = endpoint.url
    os.environ[_PROTOCOLS[0]] = endpoint.protocol
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "mtnlg")
    return export_to(endpoint)


def find_endpoint(option: str | None, environ: Mapping[str, str]) -> TraceEndpoint | None:
    """The collector that is to get traces: the option's, else the environment's; None where there is none.

    Where no protocol is set it follows from the address: port 4318 or a path means HTTP, anything else gRPC.
    Raises UserError for a protocol or an exporter that is not known.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter == "none":
        return None
    exact = option or environ.get(_TRACES_ENDPOINT)
    base = environ.get(_ENDPOINT)
    if not exact and not base:
        return None
    if exporter != "otlp":
        raise UserError(f"OTEL_TRACES_EXPORTER={exporter}: traces are exported as otlp, or not at all (none)")
    named = next((environ[name] for name in _PROTOCOLS if environ.get(name)), None)
    if named not in (None, GRPC, HTTP):
        raise UserError(f"{named} is no protocol for traces: set {_PROTOCOLS[0]} to {GRPC} or {HTTP}")
    protocol = named or _usual_protocol(exact or base or "", is_base=not exact)
    return TraceEndpoint(_full_url(exact, base or "", protocol), protocol)


def _usual_protocol(address: str, *, is_base: bool) -> str:
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        port = parts.port
    except ValueError:
        raise UserError(f"{address} is no collector's address: it should be like http://localhost:4318") from None
    if port == _HTTP_PORT or parts.path.strip("/"):
        return HTTP
    return HTTP if is_base and port != _GRPC_PORT else GRPC


def _full_url(exact: str | None, base: str, protocol: str) -> str:
    address = exact or base
    if protocol == GRPC:
        return address
    if "://" not in address:
        address = f"http://{address}"
    has_path = bool(urlsplit(address).path.strip("/"))
    return address if exact and has_path else address.rstrip("/") + _TRACES_PATH
