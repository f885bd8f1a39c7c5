"""A request's head: how many headers, how large, which of them contradict each other, to which host, and its id."""

import contextlib
import ipaddress
import re
import uuid

from serving.guard.asgi import Headers, header_values
from serving.guard.refusal import Refused, invalid
from serving.guard.settings import RequestLimits

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_ONCE = (b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding", b"x-request-id")
_HOST = re.compile(r"([^\[\]:]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{0,5})?")
_PLAIN_ENCODINGS = (b"identity", b"")


def check_head(headers: Headers, limits: RequestLimits) -> None:
    """Refuse too many or too large headers, and those that let a proxy see another request than we do."""
    if len(headers) > limits.header_count:
        raise _large(f"{len(headers)} headers; at most {limits.header_count} are taken")
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > limits.header_bytes:
        raise _large(f"headers of {size} bytes; at most {limits.header_bytes} are taken")
    names = [name.lower() for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise _ambiguous(f"the header {name.decode()} is given more than once")
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise _ambiguous("Transfer-Encoding and Content-Length are given both")
        if header_values(headers, b"transfer-encoding")[0].strip().lower() != b"chunked":
            raise _ambiguous("the only transfer encoding that is taken is chunked")


def is_loopback(host: str) -> bool:
    """Whether a name or an address, without its port, is this machine's own and nobody else's."""
    if host.lower().removesuffix(".") == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check_host(headers: Headers) -> None:
    """Refuse what was sent to another name than this machine's own.

    A web site can let its name point to 127.0.0.1 once its page has been loaded (DNS rebinding); to the browser the
    page and the server here are one site then, and only the Host header tells that they are not.
    """
    for value in header_values(headers, b"host"):  # HTTP/1.0 may leave it out; a browser never does
        match = _HOST.fullmatch(value.strip().decode("latin-1"))
        if match is None or not is_loopback(match[1].strip("[]")):
            shown = value[:64].decode("latin-1")
            message = f"this server answers to localhost and 127.0.0.1, not to {shown!r}; other names need --keys"
            raise Refused(421, message, "wrong_host", close=True)


def declared_length(headers: Headers) -> int | None:
    """The body's size that the client says, or None where it says none. Raises Refused for what is no number."""
    values = header_values(headers, b"content-length")
    if not values:
        return None
    if not values[0].isdigit() or len(values[0]) > 18:
        raise _ambiguous("Content-Length is not a number")
    return int(values[0])


def has_body(headers: Headers) -> bool:
    """Whether a body follows the head."""
    return declared_length(headers) not in (None, 0) or bool(header_values(headers, b"transfer-encoding"))


def is_json(headers: Headers) -> bool:
    """Whether the body says that it is JSON."""
    kind = (header_values(headers, b"content-type") or [b""])[0]
    media = kind.split(b";")[0].strip().lower()
    return media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))


def check_content_type(headers: Headers) -> None:
    """Refuse a body that is not plain JSON."""
    kind = (header_values(headers, b"content-type") or [b""])[0]
    if not is_json(headers):
        media = kind.split(b";")[0].strip().lower()
        shown = media[:64].decode("latin-1") or "none"
        raise Refused(415, f"Content-Type must be application/json, not {shown}", "unsupported_media_type")
    if b"charset" in kind.lower() and b"utf-8" not in kind.lower() and b"utf8" not in kind.lower():
        raise Refused(415, "JSON is taken in UTF-8 only", "unsupported_media_type")
    encodings = header_values(headers, b"content-encoding")
    if any(encoding.strip().lower() not in _PLAIN_ENCODINGS for encoding in encodings):
        raise Refused(415, "compressed bodies are not taken: leave out Content-Encoding", "unsupported_media_type")


def request_id(headers: Headers) -> str:
    """The client's X-Request-Id where it is short and harmless, else one of ours."""
    values = header_values(headers, b"x-request-id")
    if values and _SANE_ID.fullmatch(values[0]):
        return values[0].decode()
    return uuid.uuid4().hex


def bearer(headers: Headers) -> str | None:
    """The key that the client shows, or None."""
    for value in header_values(headers, b"authorization"):
        scheme, _, token = value.strip().partition(b" ")
        if scheme.lower() == b"bearer" and token.strip():
            return token.strip().decode("latin-1")
    return None


def _large(message: str) -> Refused:
    return Refused(431, message, "headers_too_large", close=True)


def _ambiguous(message: str) -> Refused:
    refusal = invalid(message, code="ambiguous_request")
    refusal.close = True
    return refusal
