"""A request's body: read within bounds of size and time, and what becomes of the rest of a refused one."""

import asyncio

from serving.guard.asgi import Headers, Message, Receive, header_values
from serving.guard.head import declared_length, has_body
from serving.guard.refusal import Refused
from serving.guard.settings import RequestLimits, Times

_QUICK_SECONDS = 0.005  # for a body that was sent together with its head
_QUICK_BYTES = 64 << 10
_LINGER_BYTES = 64 << 20


class ClientGone(Exception):  # noqa: N818 - nothing went wrong on our side
    """The client closed the connection."""


class Body:
    """The body of one request. `complete` says that nothing more of it can come."""

    def __init__(self, receive: Receive, headers: Headers, limits: RequestLimits, times: Times) -> None:
        self._receive = receive
        self._limits = limits
        self._times = times
        self._expects = bool(header_values(headers, b"expect"))
        self.declared = declared_length(headers)
        self.complete = not has_body(headers)

    def check_declared(self) -> None:
        """Refuse a body that says it is too large."""
        if self.declared is not None and self.declared > self._limits.body_bytes:
            raise self._too_large()

    async def read(self) -> bytes:
        """The whole body. Raises Refused when it is too large or too slow, ClientGone when it breaks off."""
        pieces = bytearray()
        try:
            async with asyncio.timeout(self._times.body_seconds):
                while not self.complete:
                    pieces += await self._piece()
                    if len(pieces) > self._limits.body_bytes:
                        raise self._too_large()
        except TimeoutError:
            message = f"the body did not arrive within {self._times.body_seconds:g} s"
            raise Refused(408, message, "body_timeout", close=True) from None
        return bytes(pieces)

    async def take_quickly(self) -> None:
        """Take in a small body that is probably there already, so that a refusal need not close the connection."""
        if self.complete or self._expects or (self.declared or _QUICK_BYTES) >= _QUICK_BYTES:
            return
        try:
            async with asyncio.timeout(_QUICK_SECONDS):
                while not self.complete:
                    await self._piece()
        except TimeoutError:
            pass

    async def linger(self) -> None:
        """Throw away what still comes, for a while: closing at once would make the system discard our answer."""
        left = _LINGER_BYTES
        if self._expects:
            return
        try:
            async with asyncio.timeout(self._times.linger_seconds):
                while not self.complete and left > 0:
                    left -= len(await self._piece())
        except (TimeoutError, ClientGone):
            pass

    async def _piece(self) -> bytes:
        message: Message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.complete = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    def _too_large(self) -> Refused:
        said = "" if self.declared is None else f" of {self.declared} bytes"
        message = f"a body{said} is too large: at most {self._limits.body_bytes} bytes are taken"
        return Refused(413, message, "body_too_large", close=True)
