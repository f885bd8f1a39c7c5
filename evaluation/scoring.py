"""The language model that lm-eval sees, around a backend that only scores tokens."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from lm_eval.api.model import TemplateLM

from evaluation.score_store import ScoreStore, StoredScore, request_key
from foundation.errors import UserError


@dataclass(frozen=True)
class Request:
    """Token ids: score `continuation` after `context`; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """Sum of the continuation's log-probabilities, natural logarithm; whether greedy decoding writes it."""

    logprob: float
    is_greedy: bool


@dataclass(frozen=True)
class ScoredBatch:
    """Scores by the request's index, and how many tokens went through the model for them."""

    scores: dict[int, Score]
    tokens_computed: int


class Backend(Protocol):
    """What computes log-likelihoods: a model, its tokenizer, and the longest input in tokens."""

    tokenizer: Any
    max_length: int

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        """Score every request once, in batches of any order.

        A request's context and continuation are together at most `max_length` + 1 tokens: the last one is
        only predicted.
        """
        ...

    def close(self) -> None:
        """Give back memory and processes."""
        ...


@dataclass
class Usage:
    """What scoring one cell of the grid took, by all the runs that contributed to it.

    `tokens_asked` would go through the model if every request did alone; `tokens_computed` did. In
    `contexts_cut` requests the context lost its first tokens to fit the model. `seconds` is the time of scoring,
    without loading.
    """

    requests: int = 0
    contexts_cut: int = 0
    tokens_asked: int = 0
    tokens_computed: int = 0
    seconds: float = 0.0


class ScoringLM(TemplateLM):  # type: ignore[misc]  # lm-eval ships no types
    """lm-eval's interface over a `Backend`, with tokenisation and truncation as lm-eval's HFLM has them.

    What `store` holds is not scored again, and the backend is opened only when something is missing. `advance` is told
    the number of requests that were scored, as they are. Used for one cell, then `usage` describes it and
    `prompts_sha256` pins what was asked.
    """

    def __init__(self, open_backend: Callable[[], Backend], store: ScoreStore, advance: Callable[[int], None]) -> None:
        super().__init__()
        self.usage = Usage()
        self.prompts_sha256 = ""
        self._open_backend = open_backend
        self._store = store
        self._advance = advance

    @cached_property
    def scorer(self) -> Backend:
        """The backend, opened."""
        return self._open_backend()

    @property
    def tokenizer(self) -> Any:
        """The backend's."""
        return self.scorer.tokenizer

    @property
    def eot_token_id(self) -> int:
        """End of text, which conditions a continuation that has no context."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Beginning of text where the tokenizer has one, else its end."""
        beginning = self.tokenizer.bos_token_id
        return self.eot_token_id if beginning is None else int(beginning)

    @property
    def max_length(self) -> int:
        """The longest input, in tokens."""
        return self.scorer.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: object) -> list[int]:
        """Token ids; special tokens as the tokenizer adds them, but never a second beginning of text."""
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        chosen = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        ids: list[int] = self.tokenizer.encode(string, **chosen)
        return ids

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """lm-eval's `loglikelihood`, for what is not stored yet, each different request once."""
        keys = [request_key(*request.args) for request in requests]
        self.prompts_sha256 = hashlib.sha256("".join(keys).encode()).hexdigest()
        missing = {key: request for key, request in zip(keys, requests, strict=True) if self._store.get(key) is None}
        self._advance(len(requests) - sum(key in missing for key in keys))
        if missing:
            super().loglikelihood(list(missing.values()), disable_tqdm=disable_tqdm)
        stored = {key: self._stored(key) for key in keys}
        self.usage = Usage(
            requests=len(keys),
            contexts_cut=sum(stored[key].context_cut for key in keys),
            tokens_asked=sum(stored[key].tokens_asked for key in keys),
            tokens_computed=sum(score.tokens_computed for score in stored.values()),
            seconds=round(sum(score.seconds for score in stored.values()), 3),
        )
        return [(stored[key].logprob, stored[key].is_greedy) for key in keys]

    def _stored(self, key: str) -> StoredScore:
        score = self._store.get(key)
        if score is None:
            raise RuntimeError("the backend left a request without a score")
        return score

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_options: object
    ) -> list[tuple[float, bool]]:
        fitted = [self._fit(text, context, continuation) for text, context, continuation in requests]
        started = time.monotonic()
        for batch in self.scorer.score(fitted):
            computed, seconds = batch.tokens_computed, round(time.monotonic() - started, 4)
            scores = {}
            for index, score in batch.scores.items():
                (text, context, _), request = requests[index], fitted[index]
                scores[request_key(*text)] = StoredScore(
                    score.logprob,
                    score.is_greedy,
                    tokens_asked=len(request.context) + len(request.continuation) - 1,
                    context_cut=len(request.context) < len(context),
                    tokens_computed=computed,
                    seconds=seconds,
                )
                computed, seconds = 0, 0.0
            self._store.add(scores)
            self._advance(len(scores))
            started = time.monotonic()
        return []  # they are in the store, by text

    def _fit(self, text: tuple[str, str], context: list[int], continuation: list[int]) -> Request:
        """Cut the context from the left until the request fits the model; the continuation stays whole."""
        if not continuation:
            raise UserError(f"the answer {text[1]!r} has no token of its own after {text[0][-40:]!r}")
        if len(continuation) > self.max_length:
            raise UserError(
                f"the answer {_shortened(text[1])!r} is {len(continuation)} tokens long, more than "
                f"the model's context of {self.max_length}: leave this task out for this model"
            )
        room = self.max_length + 1 - len(continuation)
        return Request(tuple(context[-room:]), tuple(continuation))

    def generate_until(self, requests: Sequence[object], disable_tqdm: bool = False) -> list[str]:
        """Not offered: no task here generates."""
        raise NotImplementedError("this model scores continuations only; a task with generate_until cannot run on it")

    def loglikelihood_rolling(self, requests: Sequence[object], disable_tqdm: bool = False) -> list[float]:
        """Not offered: no task here measures perplexity."""
        raise NotImplementedError(
            "this model scores continuations only; a task with loglikelihood_rolling cannot run on it"
        )


def _shortened(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
