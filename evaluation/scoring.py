"""The language model that lm-eval sees, around a backend that only scores tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lm_eval.api.model import TemplateLM

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


@dataclass
class Usage:
    """What scoring one cell of the grid took.

    `tokens_asked` would go through the model if every request did alone; `tokens_computed` did. In
    `contexts_cut` requests the context lost its first tokens to fit the model.
    """

    requests: int = 0
    contexts_cut: int = 0
    tokens_asked: int = 0
    tokens_computed: int = 0


class ScoringLM(TemplateLM):  # type: ignore[misc]  # lm-eval ships no types
    """lm-eval's interface over a `Backend`, with tokenisation and truncation as lm-eval's HFLM has them.

    `advance` is told the number of requests that were scored, as they are. Used for one cell, then `usage`
    describes it.
    """

    def __init__(self, scorer: Backend, advance: Callable[[int], None]) -> None:
        super().__init__()
        self.tokenizer = scorer.tokenizer
        self.usage = Usage()
        self._scorer = scorer
        self._advance = advance

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
        return self._scorer.max_length

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: object) -> list[int]:
        """Token ids; special tokens as the tokenizer adds them, but never a second beginning of text."""
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        chosen = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        ids: list[int] = self.tokenizer.encode(string, **chosen)
        return ids

    def loglikelihood(self, requests: Sequence[object], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """lm-eval's `loglikelihood`, without its own progress bar."""
        scores: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return scores

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_options: object
    ) -> list[tuple[float, bool]]:
        fitted = [self._fit(text, context, continuation) for text, context, continuation in requests]
        results: dict[int, tuple[float, bool]] = {}
        for batch in self._scorer.score(fitted):
            results.update((index, (score.logprob, score.is_greedy)) for index, score in batch.scores.items())
            self.usage.tokens_computed += batch.tokens_computed
            self._advance(len(batch.scores))
        return [results[index] for index in range(len(requests))]

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
        self.usage.requests += 1
        self.usage.contexts_cut += len(context) > room
        self.usage.tokens_asked += min(len(context), room) + len(continuation) - 1
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
