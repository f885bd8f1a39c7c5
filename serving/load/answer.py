"""What became of one request, and how an answer is read: whole or as a stream of events."""

import json
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from foundation.http_answers import error_text, retry_seconds

# Answers by which a server that is sound says no. Another 5xx is a server that failed.
_REFUSALS = frozenset({*range(400, 500), 503, 504})
_LONGEST_ERROR = 200


class Outcome(str, Enum):
    """How a request ended. `failed`: neither a full answer nor a clear refusal."""

    answered = "answered"
    refused = "refused"
    failed = "failed"


@dataclass
class Answer:
    """One request's end. Times are seconds: `sent` since the run began, `first`, `last` and `seconds` since `sent`.

    After a retry `sent` is that of the last try, and `retry_afters` has what each refusal before it asked to wait.
    """

    number: int
    sent: float = 0.0
    late: float = 0.0  # that the load tool was, behind its own timetable
    outcome: Outcome = Outcome.failed
    status: int | None = None
    error: str | None = None
    retry_after: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    choices: int = 1
    first: float | None = None  # to the first token; of streams only
    last: float | None = None
    seconds: float = 0.0
    retry_afters: list[float] = field(default_factory=list)

    @property
    def seconds_per_token(self) -> float | None:
        """Between the tokens of a choice, on average; None where that cannot be said."""
        tokens = (self.completion_tokens or 0) // self.choices
        if self.first is None or self.last is None or tokens < 2:
            return None
        return (self.last - self.first) / (tokens - 1)

    def refuse(self, body: bytes, retry_after: str | None) -> None:
        """An answer of another status than 200."""
        said, readable = said_in(body)
        self.error = said
        self.retry_after = retry_seconds(retry_after)
        if self.status in _REFUSALS and readable:
            self.outcome = Outcome.refused

    def take_whole(self, body: bytes) -> None:
        """An answer that came in one piece."""
        try:
            document = json.loads(body)
            finished = [choice for choice in document["choices"] if choice["finish_reason"]]
            self._count(document.get("usage"))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.error = "the answer is no completion"
            return
        if len(finished) < self.choices:
            self.error = f"{len(finished)} of {self.choices} choices were finished"
            return
        self.outcome = Outcome.answered

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)


class EventReader:
    """Reads a stream of server-sent events into an answer. `began` is when it was sent, of `time.perf_counter`."""

    def __init__(self, answer: Answer, began: float) -> None:
        self._answer = answer
        self._began = began
        self._rest = b""
        self._events = 0
        self._finished: set[int] = set()
        self._done = False

    def feed(self, piece: bytes) -> None:
        """Take in what has just arrived."""
        now = time.perf_counter() - self._began
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def end(self) -> None:
        """The stream has ended: was it whole?"""
        answer = self._answer
        if answer.completion_tokens is None:
            answer.completion_tokens = self._events
        if answer.error is not None:
            return
        if not self._done:
            answer.error = "the stream broke off"
        elif len(self._finished) < answer.choices:
            answer.error = f"the stream ended with {len(self._finished)} of {answer.choices} choices finished"
        else:
            answer.outcome = Outcome.answered

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = json.loads(data)
            if event.get("error"):
                self._answer.error = f"in the stream: {said_in(data)[0]}"
                return
            if event.get("usage"):
                self._answer._count(event["usage"])
            for choice in event["choices"]:
                self._choice(choice, now)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer.error = "an event of the stream is no piece of a completion"

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        if choice.get("finish_reason"):
            self._finished.add(choice.get("index", 0))
        delta = choice.get("delta")
        if delta is not None and set(delta) <= {"role", "content"} and "role" in delta and not delta.get("content"):
            return  # a chat's first event says who speaks
        answer = self._answer
        self._events += 1
        answer.first = now if answer.first is None else answer.first
        answer.last = now


def said_in(body: bytes) -> tuple[str, bool]:
    """The beginning of what an error says, and whether it was JSON that says it."""
    said, readable = error_text(body, body.decode("utf-8", "replace"))
    return said[:_LONGEST_ERROR], readable
