"""Connections of uvicorn with limits on what comes before a request is one: a head that is slow, or has no end."""

import asyncio
import socket
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.guard.asgi import ABORT, Asgi, Message, Receive, Send
from serving.guard.refusal import Refused
from serving.guard.settings import RequestLimits, Times

_SPARE_BYTES = 8 << 10  # the request line, and a body's beginning that came along

_READ_BYTES = 512 << 10  # more than asyncio hands over at once


def connection_class(limits: RequestLimits, times: Times, http: str = "auto") -> type[asyncio.Protocol]:
    """For uvicorn.Config's `http`: its own protocol (httptools where installed, else h11), bounded.

    A head that takes longer than `head_seconds` ends the connection, one larger than `header_bytes` is answered
    with 431. A client that takes nothing in for `send_seconds` loses it, whatever is still to be sent.
    """
    base: Any = H11Protocol
    if http != "h11":
        try:
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

            base = HttpToolsProtocol
        except ImportError:
            if http == "httptools":
                raise

    class BoundedProtocol(_Bounded, base):  # type: ignore[misc]
        pass

    BoundedProtocol.limits = limits
    BoundedProtocol.times = times
    return BoundedProtocol


class _Bounded:
    """Mixed in before a protocol of uvicorn's, for both of them have these attributes and methods."""

    limits: RequestLimits
    times: Times
    app: Any
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def __init__(self, config: Config, *arguments: Any, **options: Any) -> None:
        if config.h11_max_incomplete_event_size is None:  # h11 would end a large head before we do
            config.h11_max_incomplete_event_size = self.limits.header_bytes + _READ_BYTES
        super().__init__(config, *arguments, **options)  # type: ignore[call-arg]
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self.app = self._with_abort(self.app)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        peer = transport.get_extra_info("socket")
        if peer is not None and hasattr(socket, "TCP_USER_TIMEOUT") and peer.family != socket.AF_UNIX:
            # The kernel ends the connection when nothing it holds was taken in for so long.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.times.send_seconds * 1000))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._head_timer is None and self._is_idle():
            self._await_head()
        super().data_received(data)  # type: ignore[misc]
        if not self._is_idle():
            self._forget_head()
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.limits.header_bytes + _SPARE_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget_head()
        if self._end_timer is not None:
            self._end_timer.cancel()
        super().connection_lost(error)  # type: ignore[misc]

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # type: ignore[misc]
        # Closing waits until everything was sent; a client that reads nothing would wait for ever.
        self._end_timer = self.loop.call_later(self.times.send_seconds, self.transport.abort)

    def _with_abort(self, app: Asgi) -> Asgi:
        async def application(scope: Message, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**(scope.get("extensions") or {}), ABORT: self.transport.abort}
            await app(scope, receive, send)

        return application

    def _is_idle(self) -> bool:
        """Whether no request is being read or answered, so that what arrives is a head."""
        cycle = getattr(self, "cycle", None)
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.times.head_seconds, self._end_slow_head)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._head_bytes = 0

    def _end_slow_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes:
            message = f"the head did not arrive within {self.times.head_seconds:g} s"
            self._refuse(b"408 Request Timeout", Refused(408, message, "head_timeout", close=True))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        message = f"the head is larger than {self.limits.header_bytes} bytes"
        self._refuse(b"431 Request Header Fields Too Large", Refused(431, message, "headers_too_large", close=True))

    def _refuse(self, status: bytes, refusal: Refused) -> None:
        """Answer, and end our side only: the system would discard the answer if more came in after a full close."""
        self._refused = True
        self._forget_head()
        body = refusal.body()
        lines = [b"HTTP/1.1 " + status, *(name + b": " + value for name, value in refusal.head(body))]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._end_timer = self.loop.call_later(self.times.linger_seconds, self.transport.abort)
