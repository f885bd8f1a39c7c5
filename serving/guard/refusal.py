"""A refusal in OpenAI's form: status, message, type, parameter and code."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.guard.asgi import Headers

# What a client is told to wait for an engine, or a server, to come back.
RESTART_SECONDS = 5.0
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "unavailable",
    504: "timeout_error",
}


@dataclass
class Refused(Exception):  # noqa: N818 - not an error of the program's
    """A request that goes no further. `code` is also the reason that metrics and the access log show.

    `retry_seconds` becomes Retry-After; `close` ends the connection after the answer.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    retry_seconds: float | None = None
    close: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON document that clients of OpenAI's API expect."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def head(self, body: bytes) -> Headers:
        """Headers of the answer."""
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if self.retry_seconds is not None:
            head.append((b"retry-after", str(max(1, math.ceil(self.retry_seconds))).encode()))
        if self.close:
            head.append((b"connection", b"close"))
        return head + [(name.encode(), value.encode()) for name, value in self.headers.items()]

    def event(self) -> bytes:
        """The same as the last event of a stream that has begun."""
        return b"data: " + self.body() + b"\n\ndata: [DONE]\n\n"


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> Refused:
    """400 for a request that could never be answered."""
    return Refused(400, message, code, param)


def not_ready(reason: str) -> Refused:
    """503 while the engine does not take requests."""
    return Refused(503, f"not ready: {reason}", "not_ready", retry_seconds=RESTART_SECONDS)
