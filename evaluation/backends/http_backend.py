"""The backend `http`: any OpenAI-compatible server that returns the log-probabilities of a prompt."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.backends.http_client import JSONClient
from evaluation.scoring import Request, Score, ScoredBatch
from foundation.errors import UserError

_COMPLETIONS, _SCORE, _MODELS = "/v1/completions", "/v1/score", "/v1/models"
# Encoded here and decoded by the server, it must stay the same.
_PANGRAM = "The quick brown fox jumps over 13 lazy dogs: naïve, isn't it?"


class HTTPBackend:
    """Scores over HTTP, `concurrency` requests at a time.

    A server with the route `/v1/score` gets a context with all its continuations in one request; any other gets
    completions with `echo` and `logprobs`, one for each continuation. `model` is the name that the server gives it,
    its only one by default; `tokenizer` the folder with its tokenizer, by default what the server says it loaded;
    `max_length` its context in tokens, by default what the server says. `timeout` is the seconds that an answer may
    take. Raises UserError when the server cannot be used so; the key is never in a message.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        tokenizer: Path | None = None,
        concurrency: int = 16,
        max_length: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._client = JSONClient(url, api_key, concurrency, timeout=timeout)
        self._concurrency = concurrency
        try:
            card = self._model_card(model)
            self._model = str(card["id"])
            self.tokenizer = _load_tokenizer(tokenizer, card)
            # A prompt is one token longer than the input that scores it, and completions write one token more.
            self.max_length = (max_length or _context(card, self._client.name)) - 2
            self._check_tokenizer()
            self._has_score_route = self._offers_score_route()
            if not self._has_score_route:
                self._echo(Request((self.tokenizer.eos_token_id,), (self.tokenizer.eos_token_id,)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        """Score in the contexts' lexicographic order, so that the server can reuse what neighbours share."""
        by_context: dict[tuple[int, ...], list[int]] = {}
        for index in sorted(range(len(requests)), key=lambda index: requests[index].context):
            by_context.setdefault(requests[index].context, []).append(index)
        if self._has_score_route:
            jobs = [partial(self._score, requests, group) for group in by_context.values()]
        else:
            jobs = [partial(self._echoed, requests, index) for group in by_context.values() for index in group]
        yield from self._run(jobs)

    def _run(self, jobs: Sequence[Callable[[], ScoredBatch]]) -> Iterator[ScoredBatch]:
        """Results as they come. The first error ends it, after the requests that are under way."""
        running: set[Future[ScoredBatch]] = set()
        with ThreadPoolExecutor(self._concurrency) as pool:
            for job in jobs:
                if len(running) == self._concurrency:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
                running.add(pool.submit(job))
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)

    def _score(self, requests: Sequence[Request], group: Sequence[int]) -> ScoredBatch:
        """One context with all its continuations."""
        payload = {
            "model": self._model,
            "context": list(requests[group[0]].context),
            "continuations": [list(requests[index].continuation) for index in group],
        }
        answer = self._client.ask(_SCORE, payload)
        try:
            scores = [self._valid(float(entry["logprob"]), bool(entry["is_greedy"])) for entry in answer["scores"]]
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(_SCORE) from None
        if len(scores) != len(group):
            raise self._unreadable(_SCORE)
        return ScoredBatch(dict(zip(group, scores, strict=True)), _computed(answer))

    def _echoed(self, requests: Sequence[Request], index: int) -> ScoredBatch:
        score, computed = self._echo(requests[index])
        return ScoredBatch({index: score}, computed)

    def _echo(self, request: Request) -> tuple[Score, int]:
        """One request, as the end of a prompt whose log-probabilities come back; and the tokens computed for it."""
        prompt = [*request.context, *request.continuation]
        choice, answer = self._complete(prompt)
        scored = slice(len(request.context), len(prompt))
        try:
            chosen = choice["logprobs"]["token_logprobs"]
            best = [max(table.values()) for table in choice["logprobs"]["top_logprobs"][scored]]
            if not len(prompt) <= len(chosen) <= len(prompt) + 1 or len(best) != len(request.continuation):
                raise ValueError
            logprobs = [float(logprob) for logprob in chosen[scored]]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise UserError(
                f"{self._client.name}{_COMPLETIONS} does not return the log-probabilities of a prompt's tokens: "
                "scoring needs a server that takes `echo` with `logprobs` for token ids, such as vLLM's, or /v1/score"
            ) from None
        greedy = all(logprob >= top for logprob, top in zip(logprobs, best, strict=True))
        return self._valid(sum(logprobs), greedy), _computed(answer)

    def _complete(self, prompt: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The completion of a prompt, with the prompt itself; and the whole answer."""
        payload = {
            "model": self._model,
            "prompt": list(prompt),
            "echo": True,
            "logprobs": 1,
            # Some servers refuse 0; the token that is written is not looked at.
            "max_tokens": 1,
            "temperature": 0,
        }
        answer = self._client.ask(_COMPLETIONS, payload)
        try:
            (choice,) = answer["choices"]
            return dict(choice), answer
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(_COMPLETIONS) from None

    def _model_card(self, model: str | None) -> dict[str, Any]:
        """What the server says about the model that is asked for."""
        try:
            cards = {str(card["id"]): card for card in self._client.ask(_MODELS)["data"]}
        except (KeyError, TypeError):
            raise self._unreadable(_MODELS) from None
        if model is None and len(cards) == 1:
            return dict(next(iter(cards.values())))
        if model not in cards:
            asked = f"serves no model {model!r}" if model else "serves several models: name one"
            raise UserError(f"{self._client.name} {asked}; there are: {', '.join(sorted(cards))}")
        return dict(cards[model])

    def _check_tokenizer(self) -> None:
        """A tokenizer that is not the server's would give plausible wrong numbers."""
        ids = self.tokenizer.encode(_PANGRAM, add_special_tokens=False)
        text = self._complete(ids)[0].get("text")
        if not isinstance(text, str) or not text.lstrip().startswith(self.tokenizer.decode(ids).strip()):
            raise UserError(
                f"{self._client.name} does not read the tokens of {self.tokenizer.name_or_path!r} as that tokenizer "
                "writes them, or does not echo prompts of token ids: pass the folder with the served model's tokenizer"
            )

    def _offers_score_route(self) -> bool:
        """Whether `/v1/score` takes token ids; vLLM's own route of that name, for other models, does not."""
        end = self.tokenizer.eos_token_id
        payload = {"model": self._model, "context": [end], "continuations": [[end]]}
        response = self._client.try_ask(_SCORE, payload)
        if not response.is_success:
            return False
        scores = self._client.parsed(response).get("scores")
        return isinstance(scores, list) and len(scores) == 1 and {"logprob", "is_greedy"} <= set(scores[0])

    def _valid(self, logprob: float, is_greedy: bool) -> Score:
        if not math.isfinite(logprob):
            raise UserError(
                f"{self._client.name} returned the log-probability {logprob}: its model computes no numbers"
            )
        return Score(logprob, is_greedy)

    def _unreadable(self, path: str) -> UserError:
        return UserError(f"{self._client.name}{path} answered in another form than OpenAI's: update the server")


def _computed(answer: dict[str, Any]) -> int:
    """The prompt's tokens but those that the server had in its cache, as far as it says so."""
    usage = answer.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return int(usage.get("prompt_tokens") or 0) - int(cached)


def _load_tokenizer(folder: Path | None, card: dict[str, Any]) -> Any:
    """The tokenizer in `folder`, else in what the server says it loaded: a local path, or an id on the Hub."""
    from transformers import AutoTokenizer

    places = [str(folder)] if folder else [str(card[key]) for key in ("root", "id") if card.get(key)]
    for place in places:
        try:
            tokenizer = AutoTokenizer.from_pretrained(place)
        except (OSError, ValueError, TypeError):
            continue
        if tokenizer.eos_token_id is None:
            raise UserError(f"{place}: the tokenizer names no end-of-text token (eos_token)")
        return tokenizer
    raise UserError(f"no tokenizer in {' or '.join(places)}: pass --tokenizer FOLDER, the served model's")


def _context(card: dict[str, Any], name: str) -> int:
    length = card.get("max_model_len")
    if not isinstance(length, int):
        raise UserError(f"{name}{_MODELS} does not say the model's context (max_model_len): pass --max-length")
    return length
