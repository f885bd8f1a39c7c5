"""The way of a request from its head to its answer: read, checked, counted, let in, answered, settled."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from serving.guard.admission import Admission
from serving.guard.asgi import Asgi, Headers, Message, Receive, Send
from serving.guard.body import Body, ClientGone
from serving.guard.budgets import Budgets
from serving.guard.demand import Demand, check_texts, find_demand, find_model
from serving.guard.exchange import Client, Exchange
from serving.guard.head import check_content_type, is_json
from serving.guard.json_document import parse_document
from serving.guard.record import Record
from serving.guard.refusal import RESTART_SECONDS, Refused, invalid
from serving.guard.routes import Kind, Route, is_post
from serving.guard.settings import EngineFacts, EngineView, GuardSettings
from serving.guard.usage import UsageReader, ask_for_usage, wants_usage
from serving.keys import Key

_THREAD_BYTES = 256 << 10  # larger bodies are parsed outside the event loop
_COUNTED = (Kind.completion, Kind.chat)
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Request:
    """One request whose key is known. `arrived` is the clock's time."""

    scope: Message
    receive: Receive
    send: Send
    headers: Headers
    route: Route
    path: str
    record: Record
    body: Body
    key: Key | None
    share: float
    arrived: float

    @property
    def needs_engine(self) -> bool:
        """Whether an engine that is not ready, or a server that is about to end, must refuse it."""
        return self.route.kind not in (Kind.free, Kind.withheld)

    @property
    def owner(self) -> str:
        """Who it is queued for."""
        return self.key.id if self.key is not None else "-"


class Desk:
    """Handles requests that have passed the gate."""

    def __init__(
        self,
        app: Asgi,
        settings: GuardSettings,
        view: EngineView,
        admission: Admission,
        budgets: Budgets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._settings = settings
        self._view = view
        self._admission = admission
        self._budgets = budgets
        self._clock = clock
        self._exchanges: set[Exchange] = set()

    def end_requests(self) -> None:
        """Break off every request that the application is answering, with an error."""
        for exchange in self._exchanges:
            message = "the server is shutting down and stopped this request"
            exchange.break_off(Refused(503, message, "shutdown", retry_seconds=RESTART_SECONDS, close=True))

    async def handle(self, request: Request, facts: EngineFacts | None) -> None:
        """Answer `request`; `facts` where it needs the engine. Raises Refused, or ClientGone, before any answer."""
        if request.route.kind is Kind.withheld:
            raise Refused(404, f"{request.path} is not served here", "not_found")
        if is_post(request.path) and request.scope["method"] != "POST":
            message = f"{request.path} takes POST, not {request.scope['method'][:16]}"
            raise Refused(405, message, "method_not_allowed", headers={"allow": "POST"})
        request.body.check_declared()
        if facts is None:
            content = await request.body.read()
            request.record.body_bytes = len(content)
            await self._answer(request, content, UsageReader(hide=False))
            return
        with self._counted(request):
            await self._work(request, facts)

    @contextlib.contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        """Count the request against its key's limits; not where the server refuses it for reasons of its own."""
        key = request.key
        if key is None:
            yield
            return
        self._budgets.begin(key)
        try:
            yield
        except Refused as refusal:
            if refusal.status in (429, 503):
                self._budgets.give_back(key)
            raise
        finally:
            self._budgets.end(key, self._clock() - request.arrived)

    async def _work(self, request: Request, facts: EngineFacts) -> None:
        light = request.route.kind is Kind.light
        if not light:
            self._admission.check(request.owner, 1, request.share)  # before anything is read
        content = await request.body.read()
        request.record.body_bytes = len(content)
        if not light:
            self._admission.check(request.owner, 1, request.share)  # and before anything is tokenised
        document = await self._document(request, content)
        if light or (document is None and not content):
            if document is not None:
                check_texts(document, self._settings.limits)
            await self._answer(request, content, UsageReader(hide=False))
            return
        demand = await self._demand(request, document, content, facts)
        hide = False
        if document is not None and request.route.kind in _COUNTED:
            hide = self._settings.count_stream_usage and demand.stream and not wants_usage(document)
            content = _with_defaults(document, demand, content, hide=hide)
        usage = UsageReader(hide=hide)
        if request.key is not None:
            self._budgets.spend(request.key, demand.cost)
        try:
            async with Client(request.receive) as client, self._place(request, client, demand.cost):
                await self._answer(request, content, usage, client)
        finally:
            self._settle(request, demand, usage)

    async def _document(self, request: Request, content: bytes) -> dict[str, Any] | None:
        """The JSON in the body; None where there is none and need not be."""
        if request.route.label == "other" and (not content or not is_json(request.headers)):
            if request.key is not None and request.key.models is not None and content:
                raise Refused(403, "this key is bound to models, so its bodies must be JSON", "model_not_allowed")
            return None
        check_content_type(request.headers)
        if len(content) > _THREAD_BYTES:
            return await asyncio.to_thread(parse_document, content, self._settings.limits.json_depth)
        return parse_document(content, self._settings.limits.json_depth)

    async def _demand(
        self, request: Request, document: dict[str, Any] | None, content: bytes, facts: EngineFacts
    ) -> Demand:
        limits, record = self._settings.limits, request.record
        if document is None:
            size = len(content) // _BYTES_PER_TOKEN + 1
            demand = Demand(facts.models[0], size, limits.default_chat_max_tokens, 1, stream=False)
        else:
            model = find_model(document, facts, request.key.models if request.key is not None else None)
            demand = await find_demand(request.route.kind, document, model, limits, facts)
            if self._settings.log_prompts:
                record.prompt = document.get("prompt", document.get("messages"))
        record.model, record.stream = demand.model, demand.stream
        record.prompt_tokens, record.max_tokens, record.choices = (
            demand.prompt_tokens,
            demand.max_tokens,
            demand.choices,
        )
        most = self._admission.bounds.running_tokens
        if demand.cost > most:
            message = f"the request may need {demand.cost} tokens in all, prompts and every choice; at most {most} fit"
            raise invalid(message, "max_tokens", "request_too_large")
        return demand

    @contextlib.asynccontextmanager
    async def _place(self, request: Request, client: Client, cost: int) -> AsyncIterator[None]:
        """A place among what runs. Raises Refused, or ClientGone when the client leaves the queue."""
        began = self._clock()
        if not self._admission.enter_at_once(request.owner, cost, request.share):
            await self._wait_for_place(request, client, cost)
        try:
            now = self._clock()
            request.record.queue_seconds, request.record.admitted_seconds = now - began, now - request.arrived
            yield
        finally:
            self._admission.leave(cost)

    async def _wait_for_place(self, request: Request, client: Client, cost: int) -> None:
        turn = asyncio.create_task(self._admission.enter(request.owner, cost, request.share))
        seconds = self._settings.times.request_seconds
        left = max(0.0, seconds - (self._clock() - request.arrived))
        try:
            await asyncio.wait({turn, client.gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if client.gone.done():
                raise ClientGone
            if not turn.done():
                message = f"the request waited {seconds:g} s and could not start"
                raise Refused(504, message, "deadline_exceeded", retry_seconds=1)
            turn.result()
        except BaseException:
            turn.cancel()
            await asyncio.wait({turn})
            if not turn.cancelled() and turn.exception() is None:
                self._admission.leave(cost)  # let in, and nobody is there to go in
            raise

    async def _answer(self, request: Request, content: bytes, usage: UsageReader, client: Client | None = None) -> None:
        if client is None:
            async with Client(request.receive) as client:
                await self._answer(request, content, usage, client)
            return
        scope = self._inner_scope(request, len(content))
        unready = self._view.unready if request.needs_engine else None
        exchange = Exchange(scope, request.send, request.record, usage, self._settings.times, unready)
        exchange.head.append((b"x-request-id", request.record.id.encode()))
        if request.key is not None:
            exchange.head += self._budgets.headers(request.key)
        self._exchanges.add(exchange)
        try:
            await exchange.run(self._app, content, client, age=self._clock() - request.arrived)
        finally:
            self._exchanges.discard(exchange)

    def _inner_scope(self, request: Request, length: int) -> Message:
        """The scope for the application: one length, our request id, and no key for it to log."""
        dropped = {b"content-length", b"transfer-encoding", b"x-request-id", b"expect"}
        if request.key is not None:
            dropped.add(b"authorization")
        headers = [(name, value) for name, value in request.headers if name.lower() not in dropped]
        headers.append((b"x-request-id", request.record.id.encode()))
        if length:
            headers.append((b"content-length", str(length).encode()))
        return {**request.scope, "headers": headers}

    def _settle(self, request: Request, demand: Demand, usage: UsageReader) -> None:
        """Charge the key with what was used, as far as the engine has said, else with what it may have been."""
        record = request.record
        ran = record.queue_seconds is not None and (record.client_gone or 0 < record.status < 400)
        record.completion_tokens = usage.completion_tokens
        if ran and record.completion_tokens is None and demand.stream:
            record.completion_tokens = usage.events
        used = 0
        if ran:
            generated = demand.max_tokens * demand.choices
            if record.completion_tokens is not None:
                generated = record.completion_tokens
            used = (usage.prompt_tokens or demand.prompt_tokens) + generated
        if request.key is not None:
            self._budgets.settle(request.key, demand.cost, used)


def _with_defaults(document: dict[str, Any], demand: Demand, content: bytes, *, hide: bool) -> bytes:
    """The body for the engine: what was counted is what it will do. Unchanged where nothing was left open."""
    changed = document
    if document.get("max_tokens") is None and document.get("max_completion_tokens") is None:
        changed = {**changed, "max_tokens": demand.max_tokens}
    if hide:
        changed = ask_for_usage(changed)
    return content if changed is document else json.dumps(changed, separators=(",", ":")).encode()
