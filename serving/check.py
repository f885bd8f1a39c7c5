"""A client that proves a server works: wait until it is ready, then stream one completion."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from foundation.errors import UserError

_READY_SECONDS = 900.0
_POLL_SECONDS = 0.25
_REQUEST_SECONDS = 300.0
_MAX_TOKENS = 48
_TEMPERATURE = 0.8  # a small model repeats itself at 0


def checking(prompt: str) -> Callable[[str, str, str | None], Awaitable[object]]:
    """`check_server` for this prompt, as a client that `serve` runs."""

    async def check(url: str, model: str, api_key: str | None) -> int:
        return await check_server(url, model, prompt, api_key)

    return check


async def check_server(url: str, model: str, prompt: str, api_key: str | None = None) -> int:
    """Print the streamed completion of `prompt` as it arrives; returns the number of pieces.

    Raises UserError when the server does not get ready, refuses, or breaks off.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_REQUEST_SECONDS, trust_env=False) as client:
        try:
            await _wait_until_ready(client)
            print(prompt, end="", flush=True)
            pieces = 0
            async for piece in _stream(client, model, prompt):
                print(piece, end="", flush=True)
                pieces += 1
            print(flush=True)
        except httpx.HTTPError as error:
            raise UserError(f"check failed: {type(error).__name__} {error}".rstrip()) from None
    if pieces == 0:
        raise UserError("check failed: the server streamed no text")
    return pieces


async def _wait_until_ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    reason = "no answer"
    while time.monotonic() < deadline:
        response = await client.get("/ready")
        if response.status_code == httpx.codes.OK:
            return
        reason = response.json()["reason"]
        await asyncio.sleep(_POLL_SECONDS)
    raise UserError(f"check failed: not ready within {_READY_SECONDS:.0f} s: {reason}")


async def _stream(client: httpx.AsyncClient, model: str, prompt: str) -> AsyncIterator[str]:
    """Pieces of text from server-sent events, up to [DONE]."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": _MAX_TOKENS,
        "temperature": _TEMPERATURE,
        "seed": 0,
        "stream": True,
    }
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            text = (await response.aread()).decode("utf-8", "replace")
            raise UserError(f"check failed: HTTP {response.status_code}: {' '.join(text.split())[:300]}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            if line.startswith("data: "):
                event = json.loads(data)
                if "error" in event:
                    raise UserError(f"check failed: {event['error'].get('message', event['error'])}")
                yield event["choices"][0]["text"]
    raise UserError("check failed: the stream broke off before [DONE]")
