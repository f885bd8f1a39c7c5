"""The guard: ASGI around the application that lets in what may come in, when it may, and remembers what happened."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from serving.guard.admission import Admission, Bounds, find_bounds
from serving.guard.asgi import Asgi, Headers, Message, Receive, Send
from serving.guard.body import Body, ClientGone
from serving.guard.budgets import Budgets
from serving.guard.gate import authenticate, ready_facts
from serving.guard.head import check_head, check_host, request_id
from serving.guard.metrics import GuardMetrics
from serving.guard.observer import Observation, Observer
from serving.guard.promptly import within
from serving.guard.record import AccessLog, Record
from serving.guard.refusal import Refused
from serving.guard.routes import find_route
from serving.guard.settings import EngineView, GuardSettings
from serving.guard.work import Desk, Request
from serving.keys import KeyFile

_CLIENT_GONE = 499  # nginx's number for it; it reaches the log only
_POLICY = 1008  # WebSocket close codes
_TRY_LATER = 1013


def guarded(
    app: Asgi, settings: GuardSettings, view: EngineView, observer: Observer | None = None, *, local_only: bool = False
) -> "Guard":
    """`app` behind a guard; give the result to the HTTP server.

    With `local_only` requests that were sent to another name than this machine's are refused.
    Raises UserError for a key file or an access log that will not do.
    """
    return Guard(app, settings, view, observer=observer, local_only=local_only)


@dataclass
class _Entry:
    """A request before it is known whether it will be worked on."""

    scope: Message
    send: Send
    record: Record
    body: Body | None = None
    began: bool = False
    observation: Observation | None = None


class Guard:
    """One guard of one server. Call it as an ASGI application."""

    def __init__(
        self,
        app: Asgi,
        settings: GuardSettings,
        view: EngineView,
        clock: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
        *,
        local_only: bool = False,
    ) -> None:
        self._app = app
        self._local_only = local_only
        self._settings = settings
        self._view = view
        self._clock = clock
        self._observer = observer
        self._keys = KeyFile(settings.keys, clock) if settings.keys is not None else None
        self._log = AccessLog(settings.access_log) if settings.log_requests else None
        self.metrics = GuardMetrics()
        self.admission = Admission(Bounds(1, 1, 0, 0), clock)
        self._desk = Desk(app, settings, view, self.admission, Budgets(clock), clock)
        self.requests = 0  # being handled now
        self._add_gauges()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def metrics_text(self) -> bytes:
        """Our metrics in Prometheus' text format."""
        return self.metrics.render()

    def end_requests(self) -> None:
        """Break off what still runs, each with an error: the server ends."""
        self._desk.end_requests()

    def close(self) -> None:
        """Close the access log."""
        if self._log is not None:
            self._log.close()

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        arrived = self._clock()
        headers: Headers = list(scope["headers"])
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        route = find_route(scope["method"], path)
        record = Record(request_id(headers), time.time(), scope["method"], path, route.label)
        entry = _Entry(scope, send, record)
        self.requests += 1
        try:
            if self._observer is not None:
                entry.observation = self._observer.begin(record, headers)
            check_head(headers, self._settings.limits)
            if self._local_only:
                check_host(headers)
            entry.body = Body(receive, headers, self._settings.limits, self._settings.times)
            key = None
            if self._keys is not None and not route.is_open:
                key = authenticate(self._keys, headers)
                record.key = key.name
            self.metrics.begin(record)
            entry.began = True
            share = self._share()
            passed = headers if entry.observation is None else entry.observation.headers
            request = Request(scope, receive, send, passed, route, path, record, entry.body, key, share, arrived)
            facts = ready_facts(self._view) if request.needs_engine else None
            if facts is not None:
                self.admission.set_bounds(find_bounds(self._settings.admission, facts))
            await self._desk.handle(request, facts)
        except Refused as refusal:
            await self._refuse(entry, refusal)
        except ClientGone:
            self._note_gone(record)
        finally:
            self.requests -= 1
            record.seconds = self._clock() - arrived
            self._finish(entry)

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let in who has a key, when the engine is ready; what then passes is not counted."""
        headers: Headers = list(scope["headers"])
        try:
            if self._local_only:
                check_host(headers)
            if self._keys is not None:
                authenticate(self._keys, headers)
            ready_facts(self._view)
        except Refused as refusal:
            code = _TRY_LATER if refusal.status == 503 else _POLICY
            await receive()
            await send({"type": "websocket.close", "code": code, "reason": refusal.code})
            return
        await self._app(scope, receive, send)

    async def _refuse(self, entry: _Entry, refusal: Refused) -> None:
        """Answer with a refusal, so that it arrives although the client may still be sending."""
        record, body = entry.record, entry.body
        record.status, record.reason = refusal.status, refusal.code
        try:
            if body is not None and not refusal.close:
                await body.take_quickly()
            unread = body is None or not body.complete
            refusal.close = refusal.close or unread
            content = refusal.body()
            head = [*refusal.head(content), (b"x-request-id", record.id.encode())]
            await self._send(entry, {"type": "http.response.start", "status": refusal.status, "headers": head})
            lingers = unread and body is not None and refusal.status != 408
            await self._send(entry, {"type": "http.response.body", "body": content, "more_body": lingers})
            if lingers and body is not None:
                await body.linger()
                await self._send(entry, {"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientGone, TimeoutError, OSError):
            record.client_gone = True

    async def _send(self, entry: _Entry, message: Message) -> None:
        await within(self._settings.times.send_seconds, entry.send(message))

    def _note_gone(self, record: Record) -> None:
        record.client_gone = True
        record.reason = record.reason or "client_gone"
        record.status = record.status or _CLIENT_GONE

    def _finish(self, entry: _Entry) -> None:
        record = entry.record
        if record.client_gone and record.status == 0:
            record.status = _CLIENT_GONE
        self.metrics.end(record, began=entry.began)
        if self._log is not None:
            self._log.write(record)
        if entry.observation is not None:
            entry.observation.end(record)

    def _share(self) -> float:
        if self._keys is None or self._keys.current().active() < 2:
            return 1.0
        return self._settings.admission.queue_share

    def _bounds(self) -> Bounds:
        """Those of the engine that is ready; none of anything while there is none."""
        facts = self._view.facts
        return Bounds(0, 0, 0, 0) if facts is None else find_bounds(self._settings.admission, facts)

    def _add_gauges(self) -> None:
        admission = self.admission
        gauges: list[tuple[str, str, Callable[[], float]]] = [
            ("mtnlg_queue_requests", "Requests waiting.", lambda: admission.waiting_requests),
            ("mtnlg_queue_tokens", "Tokens of waiting requests.", lambda: admission.waiting_tokens),
            ("mtnlg_running_requests", "Requests that the engine has.", lambda: admission.running_requests),
            ("mtnlg_running_tokens", "Tokens reserved for them.", lambda: admission.running_tokens),
            ("mtnlg_drain_tokens_per_second", "Measured rate; 0 when unknown.", lambda: admission.rate() or 0.0),
            ("mtnlg_queue_requests_limit", "Most that may wait.", lambda: self._bounds().queue_requests),
            ("mtnlg_queue_tokens_limit", "Most tokens that may wait.", lambda: self._bounds().queue_tokens),
            (
                "mtnlg_running_requests_limit",
                "Most that the engine is given.",
                lambda: self._bounds().running_requests,
            ),
            ("mtnlg_running_tokens_limit", "Most tokens reserved at once.", lambda: self._bounds().running_tokens),
        ]
        for name, text, value in gauges:
            self.metrics.gauge(name, text, value)
