"""Clients that all ask at once, some of whom leave midway, and what each of them saw."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

WAIT_SECONDS = 120
_LONGEST_WAIT = 2.0  # whatever Retry-After says, so that a test ends


@dataclass(frozen=True)
class Seen:
    """One HTTP request as its client saw it: `end` is whole, error, left, or why it is none of these."""

    id: str
    status: int
    end: str
    message: str = ""
    retry_after: str | None = None


@dataclass
class Crowd:
    """Requests to one server, of which `concurrency` at a time are under way; `patient` ones come back when told to."""

    url: str
    model: str
    concurrency: int = 48
    patient: bool = True
    tokens: int = 16
    seen: list[Seen] = field(default_factory=list)
    started: int = 0

    def ends(self) -> Counter[str]:
        """How many requests ended in which way."""
        return Counter(one.end for one in self.seen)

    async def ask(self, count: int, name: str) -> None:
        """Ask `count` times; who is told to come back does, until there is an answer."""
        places = asyncio.Semaphore(self.concurrency)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.url, timeout=WAIT_SECONDS, limits=limits) as client:

            async def one(number: int) -> None:
                async with places:
                    await self._until_answered(client, number, name)

            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(one(number))

    async def _until_answered(self, client: httpx.AsyncClient, number: int, name: str) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            attempt = 0
            while True:
                self.started += 1
                seen = await self._request(client, number, f"{name}-{number}-{attempt}")
                self.seen.append(seen)
                if not self.patient or seen.end != "error" or seen.retry_after is None:
                    return
                attempt += 1
                await asyncio.sleep(min(float(seen.retry_after), _LONGEST_WAIT))

    async def _request(self, client: httpx.AsyncClient, number: int, request_id: str) -> Seen:
        leaves, streams = number % 5 == 4, number % 2 == 0 or number % 5 == 4
        body = {
            "model": self.model,
            "prompt": f"the {number}",
            "max_tokens": 100 if leaves else self.tokens,
            "ignore_eos": True,
            "seed": number,
            "stream": streams,
        }
        headers = {"x-request-id": request_id}
        try:
            async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                if answer.status_code == 200 and streams:
                    return await _read_stream(answer, request_id, leaves=leaves)
                content = await answer.aread()
        except httpx.HTTPError as error:
            return Seen(request_id, 0, f"broke off: {type(error).__name__}")
        return _whole_or_error(answer, content, request_id, self.tokens)


async def _read_stream(answer: httpx.Response, request_id: str, *, leaves: bool) -> Seen:
    error, done = "", False
    try:
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
            elif "error" in (event := json.loads(line[6:])):
                error = event["error"]["message"]
            elif leaves:
                return Seen(request_id, 200, "left")
    except httpx.HTTPError as problem:
        return Seen(request_id, 200, f"broke off: {type(problem).__name__}")
    if error:
        return Seen(request_id, 200, "error", error)
    return Seen(request_id, 200, "whole" if done else "cut off in silence")


def _whole_or_error(answer: httpx.Response, content: bytes, request_id: str, wanted: int) -> Seen:
    try:
        document: dict[str, Any] = json.loads(content)
    except ValueError:
        return Seen(request_id, answer.status_code, f"no JSON: {content[:80]!r}")
    if answer.status_code == 200:
        tokens = document["usage"]["completion_tokens"]
        return Seen(request_id, 200, "whole" if tokens == wanted else f"{tokens} tokens")
    error = document.get("error", {})
    if set(error) != {"message", "type", "param", "code"} or not error["message"]:
        return Seen(request_id, answer.status_code, f"no clear error: {content[:80]!r}")
    return Seen(request_id, answer.status_code, "error", error["message"], answer.headers.get("retry-after"))
