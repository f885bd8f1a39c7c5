"""The load tool's side of HTTP: cheap enough for hundreds of streams beside the server that it measures."""

import contextlib
import os
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import yarl

from foundation.errors import UserError
from serving.load.answer import Answer, EventReader, said_in

_CONNECT_SECONDS = 10.0
# A server may close a connection that is idle for a few seconds, just when a request is being sent on it.
_KEEP_SECONDS = 2.0
_REMEDIES = {
    401: "; put the server's key into MTNLG_API_KEY",
    404: "; is it an OpenAI-compatible server?",
    503: "; wait until it is ready",
}


@contextlib.asynccontextmanager
async def connected(url: str, api_key: str | None, timeout: float) -> AsyncIterator["LoadClient"]:
    """A client of the server at `url`; a whole answer may take `timeout` seconds. Raises UserError for a bad URL."""
    base = _base_url(url)
    headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, _CONNECT_SECONDS))
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_SECONDS)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=limits) as session:
        yield LoadClient(session, base, timeout)


class LoadClient:
    """Asks one server."""

    def __init__(self, session: aiohttp.ClientSession, base: yarl.URL, timeout: float) -> None:
        self._session = session
        self._base = base
        self._timeout = timeout
        self._run = uuid.uuid4().hex[:12]

    async def served_model(self, name: str | None) -> str:
        """`name`, or the server's only model. Raises UserError when it has no such, and when there is no server."""
        try:
            async with self._session.get(self._base / "v1/models") as response:
                body = await response.read()
                if response.status != 200:
                    raise self._refused(response.status, body)
                document: Any = await response.json(content_type=None)
            names = [str(card["id"]) for card in document["data"]]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = _reason(error) or f"no answer within {self._timeout:g} s"
            raise UserError(f"no server at {self._base}: {said}; mtnlg serve MODEL starts one") from None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self._base} does not list models: is it an OpenAI-compatible server?") from None
        if name is None and len(names) == 1:
            return names[0]
        if name not in names:
            asked = f"has no model {name}" if name else "has several models: name one with --model"
            raise UserError(f"{self._base} {asked}; there is: {', '.join(names) or 'none'}")
        return name

    async def ask(self, path: str, body: bytes, answer: Answer, *, stream: bool) -> None:
        """Post `body` and note in `answer` what comes; never raises for what the server or the network does."""
        headers = {"X-Request-Id": f"load-{self._run}-{answer.number}-{len(answer.retry_afters)}"}
        began = time.perf_counter()
        try:
            async with self._session.post(self._base / path[1:], data=body, headers=headers) as response:
                answer.status = response.status
                if response.status != 200:
                    answer.refuse(await response.read(), response.headers.get("Retry-After"))
                elif stream:
                    await self._read_events(response, answer, began)
                else:
                    answer.take_whole(await response.read())
        except TimeoutError:
            answer.error = f"no whole answer within {self._timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            answer.error = f"{type(error).__name__}: {_reason(error)}".removesuffix(": ")
        finally:
            answer.seconds = time.perf_counter() - began

    @staticmethod
    async def _read_events(response: aiohttp.ClientResponse, answer: Answer, began: float) -> None:
        reader = EventReader(answer, began)
        try:
            async for piece in response.content.iter_any():
                reader.feed(piece)
        finally:
            reader.end()

    def _refused(self, status: int, body: bytes) -> UserError:
        return UserError(f"{self._base} answered {status}: {said_in(body)[0]}{_REMEDIES.get(status, '')}")


def _reason(error: BaseException) -> str:
    """What the system says of a connection that could not be had, else what the error says."""
    if isinstance(error, aiohttp.ClientConnectorError) and (error.os_error.errno or 0) > 0:
        return os.strerror(error.os_error.errno or 0)
    return " ".join(str(error).split())


def _base_url(url: str) -> yarl.URL:
    try:
        base = yarl.URL(url.rstrip("/").removesuffix("/v1"))
        sound = base.scheme in ("http", "https") and bool(base.host)
    except ValueError:
        sound = False
    if not sound:
        raise UserError(f"{url} is no URL of a server: give one such as http://localhost:8000")
    if base.user is not None or base.password is not None:
        raise UserError("the URL holds a user name or a password: put the server's key into MTNLG_API_KEY instead")
    return base
