"""The words of ASGI that the guard speaks, and headers."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ABORT = "mtnlg.abort"  # an ASGI extension: a function that cuts the connection, whatever is still unsent


def header_values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Every value of the header `name` (lower case), in order."""
    return [value for key, value in headers if key.lower() == name]


def abort_connection(scope: Message) -> None:
    """Cut the client's connection where the server has said how (see `serving.guard.connection`)."""
    abort = (scope.get("extensions") or {}).get(ABORT)
    if abort is not None:
        abort()
