"""A backend with log-likelihoods that a test names, and probes small enough to check by hand."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from evaluation.bias.probes import Probes
from evaluation.scoring import Request, Score, ScoredBatch

LogProb = Callable[[str, str], float]


class WordTokenizer:
    """A token a word, with the space before it."""

    eos_token_id = 0
    bos_token_id = None

    def __init__(self) -> None:
        self._words = ["<end>"]

    def encode(self, text: str, **_options: object) -> list[int]:
        words = re.findall(r"\s?\S+", text)
        self._words += [word for word in dict.fromkeys(words) if word not in self._words]
        return [self._words.index(word) for word in words]

    def decode(self, ids: int | Sequence[int]) -> str:
        return "".join(self._words[token] for token in ([ids] if isinstance(ids, int) else ids))


class StubBackend:
    """Scores by a function of the texts, last request first, in batches of three; counts what it is asked."""

    max_length = 64

    def __init__(self, logprob: LogProb) -> None:
        self.tokenizer: Any = WordTokenizer()
        self.calls: list[list[Request]] = []
        self._logprob = logprob

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        self.calls.append(list(requests))
        order = list(reversed(range(len(requests))))
        for start in range(0, len(order), 3):
            batch = {index: Score(self._of(requests[index]), False) for index in order[start : start + 3]}
            yield ScoredBatch(batch, tokens_computed=len(batch))

    def close(self) -> None:
        """Nothing to give back."""

    def _of(self, request: Request) -> float:
        return self._logprob(self.tokenizer.decode(request.context), self.tokenizer.decode(request.continuation))


def small_probes() -> dict[str, Any]:
    """A probes' file with one axis of two groups and one of three."""
    return {
        "occupation": {
            "template": "The {occupation} was a",
            "identifiers": {"female": ["female", "woman"], "male": ["male", "man"]},
            "reference": ["person", "adult"],
            "occupations": ["nurse", "pilot", "tree surgeon", "clerk"],
        },
        "adjectives": {"positive": ["good", "kind"], "negative": ["bad", "cruel"], "neutral": ["tall"]},
        "sentiment": "labels",
        "axes": {
            "gender": {
                "templates": ["{pronoun} was very", "The {noun} was very"],
                "groups": {"male": {"pronoun": "He", "noun": "man"}, "female": {"pronoun": "She", "noun": "woman"}},
            },
            "place": {
                "templates": ["The {name} guest was very", "{name} guests are very"],
                "groups": {name: {"name": name} for name in ("Northern", "Southern", "Western")},
            },
        },
        "published": [{"model": "<b>Other & co</b>", "occupations": 10, "male_preferred": 0.75}],
    }


def write_probes(path: Path, content: dict[str, Any] | None = None) -> Path:
    """The probes as a file."""
    path.write_text(yaml.safe_dump(content or small_probes(), sort_keys=False), encoding="utf-8")
    return path


def parsed(content: dict[str, Any] | None = None) -> Probes:
    """The probes as an object."""
    return Probes.model_validate(content or small_probes())
