"""What is sent and when: requests with made-up or given prompts, one after another or at set times."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Every vocabulary has these ids, and they are no special tokens: bytes or single characters in most.
_TOKEN_IDS = range(32, 256)


@dataclass(frozen=True)
class Shape:
    """How much one request asks for, in tokens of the prompt, tokens of each answer, and answers."""

    prompt_tokens: int = 64
    max_tokens: int = 32
    choices: int = 1
    stream: bool = True


@dataclass(frozen=True)
class Call:
    """One request. `at` is seconds after the start, None for as soon as there is a place; `prompt` None for made up.

    `choices` is how many answers come back, all prompts together; `messages` says that the prompt is a chat's.
    """

    number: int
    shape: Shape
    at: float | None = None
    prompt: Any = None
    messages: bool = False

    @property
    def path(self) -> str:
        """The route that it goes to."""
        return "/v1/chat/completions" if self.messages else "/v1/completions"

    def body(self, model: str, seed: int, *, ignore_eos: bool) -> bytes:
        """The JSON to post. The same seed and number give the same prompt; no two numbers share one."""
        shape = self.shape
        prompt = (
            self.prompt if self.prompt is not None else made_up_prompt(shape.prompt_tokens, f"{seed}/{self.number}")
        )
        each = shape.choices // _prompts(prompt) or 1
        document: dict[str, Any] = {
            "model": model,
            "messages" if self.messages else "prompt": prompt,
            "max_tokens": shape.max_tokens,
            "temperature": 0 if each == 1 else 1,  # several answers that are all the likeliest are refused
            "stream": shape.stream,
        }
        document |= {"n": each} if each > 1 else {}
        document |= {"stream_options": {"include_usage": True}} if shape.stream else {}
        document |= {"ignore_eos": True} if ignore_eos else {}
        return json.dumps(document, separators=(",", ":")).encode()


def made_up_prompt(tokens: int, seed: str) -> list[int]:
    """So many token ids, seeded: no server has another one's beginning in its prefix cache."""
    return random.Random(seed).choices(_TOKEN_IDS, k=tokens)


def one_after_another(shape: Shape, requests: int) -> list[Call]:
    """Requests for a closed loop, each sent when another has ended."""
    return [Call(number, shape) for number in range(requests)]


def at_once(shape: Shape, requests: int) -> list[Call]:
    """Requests that are all sent at the start."""
    return [Call(number, shape, at=0.0) for number in range(requests)]


def at_random(shape: Shape, requests: int, rate: float, seed: int) -> list[Call]:
    """Requests that come as strangers do, a Poisson process of `rate` a second, whatever becomes of the others."""
    gaps = random.Random(f"{seed}/arrivals")
    times: Iterator[float] = itertools.accumulate(gaps.expovariate(rate) for _ in range(requests))
    return [Call(number, shape, at=at) for number, at in enumerate(times)]


def _prompts(prompt: Any) -> int:
    """How many prompts stand in the field `prompt`: a list may be one of token ids, or a chat's messages."""
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str | list) else 1
