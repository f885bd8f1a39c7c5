"""The verb `generate`: one prompt's answer on the terminal, from a model folder or from a server that runs."""

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import httpx

from foundation.errors import UserError
from serving.guard.settings import GuardSettings
from serving.model_folder import ParallelSizes
from serving.server import serve

_TIMEOUT = httpx.Timeout(300, connect=20)
# What would move a terminal's cursor, change its colours or its title: a model may write anything.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def generate(
    model: str,
    prompt: str | None,
    *,
    max_tokens: int = 256,
    temperature: float = 0.8,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: Sequence[str] = (),
    url: str | None = None,
    api_key: str | None = None,
    sizes: ParallelSizes | None = None,
    engine_options: Sequence[str] = (),
) -> None:
    """Print what `model` makes of `prompt`, as it comes; standard output gets nothing else.

    `model` is a folder, or with `url` the name under which that server has it. A `prompt` of None or "-" is read from
    standard input, without its last line break. On a terminal the prompt comes first, control characters are left out,
    and a last line on standard error says what it took. Other options go to the engine.

    Raises UserError for a prompt, folder or option that will not do, and for what the server refuses; KeyboardInterrupt
    after Ctrl-C, once the request has ended and the engine is gone.
    """
    body: dict[str, Any] = {
        "prompt": _prompt_text(prompt),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {"seed": seed} if seed is not None else {}
    body |= {"stop": list(stop)} if stop else {}
    if url is not None:
        asyncio.run(_Printer(sys.stdout, body).answer(url, model, api_key))
        return
    with _engine_apart() as output:
        printer = _Printer(output, body)
        serve(
            Path(model),
            port=0,
            sizes=sizes,
            engine_options=engine_options,
            guard=GuardSettings(log_requests=False),
            client=printer.answer,
        )
    if not printer.finished:
        raise KeyboardInterrupt


def _prompt_text(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise UserError('no prompt: mtnlg generate MODEL "a prompt", or pipe one in')
    text = sys.stdin.read().removesuffix("\n") if prompt in {None, "-"} else prompt
    if not text:
        raise UserError("the prompt is empty")
    return text


@contextlib.contextmanager
def _engine_apart() -> Iterator[TextIO]:
    """Standard output for the answer alone: what else is written there, by the engine too, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    with os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="replace") as output:
        os.dup2(2, 1)
        try:
            yield output
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


@dataclass
class _Printer:
    """Asks for one completion and prints it."""

    output: TextIO
    body: dict[str, Any]
    finished: bool = False

    async def answer(self, url: str, model: str, api_key: str | None) -> None:
        """Print the answer of the server at `url`. Raises UserError when there is none, or when it breaks off."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        base = url.rstrip("/").removesuffix("/v1")
        terminal = self.output.isatty()
        if terminal:
            self._write(self.body["prompt"], clean=True)
        started = time.monotonic()
        first, tokens, wrote = None, 0, False
        try:
            async with httpx.AsyncClient(base_url=base, headers=headers, timeout=_TIMEOUT, trust_env=False) as client:
                name = await _served_name(client, model)
                async for event in _events(client, {"model": name, **self.body}):
                    for choice in event["choices"]:
                        first = first or time.monotonic()
                        self._write(choice["text"], clean=terminal)
                        wrote = True
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            self.finished = True
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"{_shown(base)}: {type(error).__name__} {error}".rstrip()) from None
        except BrokenPipeError:
            self.finished = True  # the reader has what it wanted: `... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.output.fileno())
        finally:
            if wrote or terminal:
                with contextlib.suppress(BrokenPipeError):
                    self._write("\n", clean=False)
        if first is not None and sys.stderr.isatty():
            ended = time.monotonic()
            rate = f", {(tokens - 1) / (ended - first):.1f} tokens/s" if tokens > 1 else ""
            print(f"mtnlg: {tokens} tokens, first after {first - started:.2f} s{rate}", file=sys.stderr)

    def _write(self, text: str, *, clean: bool) -> None:
        self.output.write(_CONTROL.sub("", text) if clean else text)
        self.output.flush()


async def _served_name(client: httpx.AsyncClient, model: str) -> str:
    """The name that the server has for `model`, which may also be the folder that it serves."""
    response = await client.get("/v1/models")
    if response.status_code != httpx.codes.OK:
        raise _refusal(client, response)
    names: list[str] = [card["id"] for card in response.json()["data"]]
    for name in (model, Path(model).name):
        if name in names:
            return name
    raise UserError(f"{_shown(str(client.base_url))} has no model {model}; it has {', '.join(names)}")


async def _events(client: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events, up to [DONE]."""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            await response.aread()
            raise _refusal(client, response)
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if (data := line.removeprefix("data: ")) == "[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise UserError(f"the server gave up: {event['error'].get('message', event['error'])}")
            yield event
    raise UserError("the stream broke off before its end")


def _refusal(client: httpx.AsyncClient, response: httpx.Response) -> UserError:
    said = response.text
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = response.json()["error"]["message"]
    wait = response.headers.get("Retry-After")
    remedies = {
        401: "; pass the server's key with --api-key",
        429: f"; try again in {wait} s" if wait else "; try again later",
        503: f"; try again in {wait} s" if wait else "",
    }
    remedy = remedies.get(response.status_code, "")
    return UserError(
        f"{_shown(str(client.base_url))} answered {response.status_code}: {' '.join(said.split())[:300]}{remedy}"
    )


def _shown(url: str) -> str:
    """A URL for an error message: a password may stand in it."""
    try:
        return str(httpx.URL(url.rstrip("/")).copy_with(username=None, password=None))
    except httpx.InvalidURL:
        return url
