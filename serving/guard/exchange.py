"""One request that the application is answering: watched for a client that leaves or stalls, and for its deadline."""

import asyncio
import logging
import time
from collections.abc import Callable

from serving.guard.asgi import Asgi, Headers, Message, Receive, Send, abort_connection, header_values
from serving.guard.record import Record
from serving.guard.refusal import Refused
from serving.guard.settings import Times
from serving.guard.usage import UsageReader

_LOG = logging.getLogger("mtnlg.guard")


class Client:
    """Watches, once the body was read, whether the client is still there."""

    def __init__(self, receive: Receive) -> None:
        self.gone = asyncio.create_task(self._watch(receive))

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gone.cancel()
        await asyncio.wait({self.gone})

    @staticmethod
    async def _watch(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Exchange:
    """Runs the application on one request. It is told to stop by the word that ASGI has: the client's disconnect.

    A cancelled task would not do: vLLM answers in a task of its own, which ends on a disconnect alone.
    """

    def __init__(self, scope: Message, send: Send, record: Record, usage: UsageReader, times: Times) -> None:
        self._scope = scope
        self._send = send
        self._record = record
        self._usage = usage
        self._times = times
        self._clock: Callable[[], float] = time.monotonic
        self._began = self._clock()
        self._stop = asyncio.Event()
        self._body: bytes | None = None
        self._is_stream = False
        self.head: Headers = []  # to be added to the answer's
        self.started = False
        self.complete = False

    async def run(self, app: Asgi, body: bytes, client: Client, *, age: float) -> None:
        """Let `app` answer; `age` is how many seconds ago the request arrived. Returns when nothing of it runs."""
        self._began = self._clock() - age
        self._body = body
        task = asyncio.create_task(self._answer(app))
        stalled = asyncio.create_task(self._stop.wait())
        try:
            left = max(0.0, self._times.request_seconds - age)
            await asyncio.wait({task, stalled, client.gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await self._end(task, client)
        finally:
            task.cancel()
            stalled.cancel()
            await asyncio.wait({task, stalled})
        if not task.cancelled() and (error := task.exception()) is not None:
            await self._failed(error)

    async def _end(self, task: asyncio.Task[None], client: Client) -> None:
        late = not client.gone.done() and not self._stop.is_set()
        if not self.complete:
            self._record.client_gone = client.gone.done()
            self._record.reason = self._record.reason or ("deadline_exceeded" if late else "client_gone")
        self._stop.set()
        if late and not self.complete:
            await self._say_late()
        await asyncio.wait({task}, timeout=self._times.stop_seconds)
        if not task.done():
            _LOG.warning("request %s did not end when told to, and is cancelled", self._record.id)

    async def _answer(self, app: Asgi) -> None:
        await app(self._scope, self._receive, self._pass)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._stop.wait()
        return {"type": "http.disconnect"}

    async def _pass(self, message: Message) -> None:
        """Hand a message of the application's on, unless nobody is to get it any more."""
        if self._stop.is_set() or self.complete:
            return
        if message["type"] == "http.response.start":
            self.started = True
            self._record.status = message["status"]
            own = {name for name, _ in self.head}
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in own]
            kind = header_values(kept, b"content-type")
            self._is_stream = bool(kind) and kind[0].startswith(b"text/event-stream")
            message = {**message, "headers": kept + self.head}
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            if body:
                self._mark()
                message = {**message, "body": self._usage.passed(body)}
            self.complete = not message.get("more_body", False)
        await self._deliver(message)

    def _mark(self) -> None:
        now = self._clock() - self._began
        if self._record.first_seconds is None:
            self._record.first_seconds = now
        self._record.last_seconds = now

    async def _deliver(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._times.send_seconds):
                await self._send(message)
        except TimeoutError:
            self._record.reason = "slow_reader"
            self._stop.set()
            abort_connection(self._scope)
        except OSError:  # servers of a newer ASGI say so when the client is gone
            self._record.client_gone = True
            self._record.reason = self._record.reason or "client_gone"
            self._stop.set()

    async def _say_late(self) -> None:
        message = f"the request took longer than {self._times.request_seconds:g} s and was stopped"
        await self._break_off(Refused(504, message, "deadline_exceeded", retry_seconds=1, close=True))

    async def _failed(self, error: BaseException) -> None:
        if self._stop.is_set() or self.complete:
            return
        _LOG.error("request %s failed", self._record.id, exc_info=error)
        self._record.reason = "internal_error"
        await self._break_off(Refused(500, "the server failed to answer", "internal_error", close=True))

    async def _break_off(self, refusal: Refused) -> None:
        """End an answer that will not be finished: refuse, or say so in the stream, or cut the connection."""
        if not self.started:
            self._record.status = refusal.status
            self.started = True
            body = refusal.body()
            start = {"type": "http.response.start", "status": refusal.status, "headers": refusal.head(body) + self.head}
            await self._deliver(start)
            await self._deliver({"type": "http.response.body", "body": body})
        elif self._is_stream:
            await self._deliver({"type": "http.response.body", "body": refusal.event()})
        else:
            abort_connection(self._scope)  # a body that is cut short must not look whole
        self.complete = True
