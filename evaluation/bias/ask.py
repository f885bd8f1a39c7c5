"""What the probes ask of the model: one log-likelihood for each text and continuation."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from evaluation.bias.intervals import Array
from evaluation.bias.probes import Axis, Probes
from evaluation.score_store import ScoreStore
from evaluation.scoring import Backend, ScoringLM, Usage
from foundation.errors import UserError
from foundation.files import write_text

Pair = tuple[str, str]
LogLikelihoods = Mapping[Pair, float]


def pairs(probes: Probes) -> list[Pair]:
    """Every (context, continuation) that the probes need, each once."""
    asked = occupation_pairs(probes)
    for axis in probes.axes.values():
        for template in axis.templates:
            for group in axis.groups:
                asked += [continued(axis.prompt(template, group), word) for word in probes.adjectives.all]
    return list(dict.fromkeys(asked))


def occupation_pairs(probes: Probes) -> list[Pair]:
    """Identifiers after occupations and reference nouns."""
    probe = probes.occupation
    identifiers = [*probe.identifiers.female, *probe.identifiers.male]
    nouns = [*probe.occupations, *probe.reference]
    return [continued(probe.prompt(noun), identifier) for noun in nouns for identifier in identifiers]


def continued(prompt: str, word: str) -> Pair:
    """A prompt and the word after it, which brings the space between them."""
    return prompt, f" {word}"


def score_pairs(
    asked: Sequence[Pair], open_backend: Callable[[], Backend], store: ScoreStore, advance: Callable[[int], None]
) -> tuple[dict[Pair, float], Usage]:
    """Log-likelihoods, natural logarithm, of what `store` has not yet in one call of the backend.

    Raises UserError when the model's numbers overflow.
    """
    from lm_eval.api.instance import Instance

    model = ScoringLM(open_backend, store, advance)
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(asked)]
    scores = {pair: logprob for pair, (logprob, _) in zip(asked, model.loglikelihood(requests), strict=True)}
    for (context, continuation), logprob in scores.items():
        if not math.isfinite(logprob):
            raise UserError(
                f"the model gives {context + continuation!r} a log-likelihood of {logprob}: its numbers overflow; "
                "evaluate with --dtype float32"
            )
    return scores, model.usage


def adjective_table(scores: LogLikelihoods, axis: Axis, adjectives: Iterable[str]) -> Array:
    """Log-likelihoods [templates, groups, adjectives] on one axis."""
    words = list(adjectives)
    return np.array(
        [
            [[scores[continued(axis.prompt(template, group), word)] for word in words] for group in axis.groups]
            for template in axis.templates
        ]
    )


def write_samples(path: Path, scores: LogLikelihoods) -> None:
    """One JSON line for each text and continuation, so that anything can be computed from them again."""
    lines = (
        json.dumps({"context": context, "continuation": continuation, "logprob": logprob}, ensure_ascii=False)
        for (context, continuation), logprob in scores.items()
    )
    write_text(path, "\n".join(lines) + "\n")
