"""One request that the application is answering: watched for a client that leaves or stalls, and for its deadline."""

import asyncio
import logging
import time
from collections.abc import Callable

from serving.guard.asgi import Asgi, Headers, Message, Receive, Send, abort_connection, header_values
from serving.guard.promptly import within
from serving.guard.record import Record
from serving.guard.refusal import RESTART_SECONDS, Refused, not_ready
from serving.guard.settings import Times
from serving.guard.usage import UsageReader

_LOG = logging.getLogger("mtnlg.guard")
# As vLLM writes them, in OpenAI's form and in Anthropic's. In a text the quotes would be escaped.
_STREAM_ERRORS = (b'data: {"error"', b"event: error\n", b"event: response.failed\n")


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
    Where `unready` is given and says why the engine is gone, the application's failure is that, and is answered so.
    """

    def __init__(
        self,
        scope: Message,
        send: Send,
        record: Record,
        usage: UsageReader,
        times: Times,
        unready: Callable[[], str | None] | None = None,
    ) -> None:
        self._scope = scope
        self._send = send
        self._record = record
        self._usage = usage
        self._times = times
        self._unready = unready
        self._clock: Callable[[], float] = time.monotonic
        self._began = self._clock()
        self._stop = asyncio.Event()
        self._body: bytes | None = None
        self._is_stream = False
        self._cut: Refused | None = None
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
            if not task.done() or (self._cut is not None and not self.complete):
                await self._end(task, client)
        finally:
            task.cancel()
            stalled.cancel()
            await asyncio.wait({task, stalled})
        if not task.cancelled() and (error := task.exception()) is not None:
            await self._failed(error)

    def break_off(self, refusal: Refused) -> None:
        """End the answer with an error, as soon as the event loop comes to it."""
        if not self._stop.is_set():
            self._cut = refusal
            self._stop.set()

    async def _end(self, task: asyncio.Task[None], client: Client) -> None:
        gone = client.gone.done()
        if not gone and not self._stop.is_set():
            self._cut = self._too_late()
        cut = None if gone else self._cut
        if not self.complete:
            self._record.client_gone = gone
            self._record.reason = self._record.reason or (cut.code if cut is not None else "client_gone")
        self._stop.set()
        if cut is not None and not self.complete:
            await self._break_off(cut)
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
            if (refusal := self._failure(message)) is not None:
                self._record.reason = refusal.code
                await self._break_off(refusal)
                return
            self.started = True
            status = message["status"]
            # vLLM says 501 for what this model cannot do: nothing has failed, and no other try will go better.
            message = {**message, "status": 400 if status == 501 else status}
            self._record.status = message["status"]
            own = {name for name, _ in self.head}
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in own]
            kind = header_values(kept, b"content-type")
            self._is_stream = bool(kind) and kind[0].startswith(b"text/event-stream")
            message = {**message, "headers": kept + self.head}
        elif message["type"] == "http.response.body":
            message = self._read(message)
        await self._deliver(message)

    def _read(self, message: Message) -> Message:
        """Take note of a piece of the body; returns what the client is to get of it."""
        body = message.get("body", b"")
        if body:
            self._mark()
            if self._is_stream and _tells_error(body):
                self._record.reason = "engine_failed" if self._why_unready() else "stream_error"
            passed = self._usage.passed(body)
            message = message if passed is body else {**message, "body": passed}
        self.complete = not message.get("more_body", False)
        return message

    def _mark(self) -> None:
        now = self._clock() - self._began
        if self._record.first_seconds is None:
            self._record.first_seconds = now
        self._record.last_seconds = now

    async def _deliver(self, message: Message) -> None:
        try:
            await within(self._times.send_seconds, self._send(message))
        except TimeoutError:
            self._record.reason = "slow_reader"
            self._stop.set()
            abort_connection(self._scope)
        except OSError:  # servers of a newer ASGI say so when the client is gone
            self._record.client_gone = True
            self._record.reason = self._record.reason or "client_gone"
            self._stop.set()

    def _too_late(self) -> Refused:
        message = f"the request took longer than {self._times.request_seconds:g} s and was stopped"
        return Refused(504, message, "deadline_exceeded", retry_seconds=1, close=True)

    def _why_unready(self) -> str | None:
        return self._unready() if self._unready is not None else None

    def _failure(self, start: Message) -> Refused | None:
        """What to say instead of an answer that begins so: the engine is gone, or it says nothing to a client."""
        status: int = start["status"]
        if status < 500 or status == 501:
            return None
        if (reason := self._why_unready()) is not None:
            return not_ready(reason) if status == 503 else _engine_failed(reason)
        kind = header_values(start.get("headers", []), b"content-type")
        says = bool(kind) and kind[0].startswith(b"application/json")
        return None if says or self._unready is None else _internal_error()

    async def _failed(self, error: BaseException) -> None:
        if self._stop.is_set() or self._record.reason == "engine_failed":
            return
        reason = self._why_unready()
        if reason is None:
            _LOG.error("request %s failed", self._record.id, exc_info=error)
        if not self.complete:
            refusal = _internal_error() if reason is None else _engine_failed(reason)
            self._record.reason = refusal.code
            await self._break_off(refusal)

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


def _tells_error(piece: bytes) -> bool:
    return any(map(piece.__contains__, _STREAM_ERRORS))


def _engine_failed(reason: str) -> Refused:
    message = f"the engine stopped while it worked on this request ({reason}); try again"
    return Refused(503, message, "engine_failed", retry_seconds=RESTART_SECONDS)


def _internal_error() -> Refused:
    return Refused(500, "the server failed to answer", "internal_error", close=True)
