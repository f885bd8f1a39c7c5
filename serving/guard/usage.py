"""The engine's own count of tokens, read from its answers as they pass; hidden where the client did not ask."""

import json
import re
from collections.abc import Mapping
from typing import Any

_USAGE = re.compile(rb'"usage":\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_EVENT_END = b"\n\n"
_NO_CHOICES = re.compile(rb'"choices":\s*\[\s*\]')


def ask_for_usage(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stream's request, changed so that the engine says at the end how many tokens there were."""
    options = {**(document.get("stream_options") or {}), "include_usage": True}
    return {**document, "stream_options": options}


def wants_usage(document: Mapping[str, Any]) -> bool:
    """Whether the client itself has asked for it."""
    return bool((document.get("stream_options") or {}).get("include_usage"))


class UsageReader:
    """Reads usage from pieces of an answer. `hide` takes the event that only tells usage out of a stream."""

    def __init__(self, *, hide: bool) -> None:
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.events = 0  # of a stream: about as many as tokens, for one that breaks off before it tells
        self._hide = hide

    def passed(self, piece: bytes) -> bytes:
        """Look at a piece of the answer; returns what the client is to get of it."""
        self.events += piece.count(b"data: {")
        if b'"usage"' not in piece:
            return piece
        for match in _USAGE.finditer(piece):
            self._take(match.group(1))
        if not self._hide or not piece.endswith(_EVENT_END):
            return piece
        events = piece[: -len(_EVENT_END)].split(_EVENT_END)
        kept = [event for event in events if not _tells_only_usage(event)]
        return b"".join(event + _EVENT_END for event in kept)

    def _take(self, text: bytes) -> None:
        try:
            usage = json.loads(text)
        except ValueError:
            return
        # vLLM calls them one thing, its routes for responses and messages another.
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        completion = usage.get("completion_tokens", usage.get("output_tokens"))
        if isinstance(prompt, int):
            self.prompt_tokens = prompt
        if isinstance(completion, int):
            self.completion_tokens = completion


def _tells_only_usage(event: bytes) -> bool:
    return event.startswith(b"data:") and _USAGE.search(event) is not None and _NO_CHOICES.search(event) is not None
