"""What the guard is told: bounds on requests, on what runs and waits, and facts of the engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from foundation.config import StrictModel


class RequestLimits(StrictModel):
    """Bounds on one request; beyond them it is refused before the engine hears of it."""

    body_bytes: int = Field(default=4 << 20, ge=1024)
    header_count: int = Field(default=100, ge=8)
    header_bytes: int = Field(default=32 << 10, ge=1024)
    json_depth: int = Field(default=32, ge=4)
    prompts: int = Field(default=128, ge=1)
    prompt_characters: int = Field(default=1 << 20, ge=1)
    messages: int = Field(default=1024, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)  # None: what the model's context holds
    default_max_tokens: int = Field(default=16, ge=1)
    default_chat_max_tokens: int = Field(default=512, ge=1)
    n: int = Field(default=16, ge=1)
    logprobs: int = Field(default=20, ge=0)
    stop_strings: int = Field(default=4, ge=0)
    stop_characters: int = Field(default=256, ge=1)
    list_entries: int = Field(default=1024, ge=1)  # logit_bias, stop_token_ids, bad_words, ...
    grammar_characters: int = Field(default=64 << 10, ge=1)  # response_format, structured_outputs, tools


class Times(StrictModel):
    """Seconds after which a client, or a request, has had its time."""

    head_seconds: float = Field(default=10.0, gt=0)
    body_seconds: float = Field(default=20.0, gt=0)
    request_seconds: float = Field(default=600.0, gt=0)
    send_seconds: float = Field(default=20.0, gt=0)
    stop_seconds: float = Field(default=5.0, gt=0)  # for the engine to end a request that it was told to end
    linger_seconds: float = Field(default=2.0, gt=0)  # to take in the rest of a refused body, so that the answer lands


class AdmissionLimits(StrictModel):
    """Bounds on what runs and what waits. A token is one of the prompt, or one that may be generated.

    Where `running_*` is None the engine's own facts are taken; where `queue_tokens` is, twice the running tokens.
    """

    running_requests: int | None = Field(default=None, ge=1)
    running_tokens: int | None = Field(default=None, ge=1)
    queue_requests: int = Field(default=256, ge=0)
    queue_tokens: int | None = Field(default=None, ge=0)
    queue_seconds: float = Field(
        default=30.0, gt=0
    )  # by the measured rate; a request that would wait longer is refused
    queue_share: float = Field(default=0.5, gt=0, le=1)  # of the queue that one key may fill, where there are several


class GuardSettings(StrictModel):
    """Everything about the guard that an operator may set (`configs/serving/limits.yaml`)."""

    limits: RequestLimits = RequestLimits()
    times: Times = Times()
    admission: AdmissionLimits = AdmissionLimits()
    count_stream_usage: bool = True  # ask the engine for a stream's usage, and hide it from clients that did not
    keys: Path | None = None
    access_log: Path | None = None  # None: standard output
    log_requests: bool = True
    log_prompts: bool = False


@dataclass(frozen=True)
class EngineFacts:
    """What the guard has to know of a loaded model.

    `count_tokens` gives the tokens of a text, special ones included; `count_chat`, where given, those of a chat
    request's document after the template; where it raises, a guess is taken. Both are called in the event loop for
    short texts and in a thread for long ones. `token_characters` is the most characters that one token can stand for.
    """

    models: tuple[str, ...]
    max_model_len: int
    count_tokens: Callable[[str], int]
    count_chat: Callable[[Mapping[str, Any]], int] | None = None
    vocab_size: int | None = None
    token_characters: int = 128
    running_requests: int = 256
    running_tokens: int | None = None  # what the engine's key-value cache holds


class EngineView(Protocol):
    """How the guard sees the engine, which comes, goes and comes back while the guard stays."""

    @property
    def draining(self) -> bool:
        """Whether the server takes no more requests because it is about to end."""
        ...

    @property
    def facts(self) -> EngineFacts | None:
        """None until the engine has made a token."""
        ...

    def unready(self) -> str | None:
        """Why requests are not taken now, or None when they are."""
        ...
