"""Tokenisation at the join, truncation, packing, and what the backend is asked."""

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from foundation.errors import UserError


class RecordingBackend:
    """Remembers what it is asked and scores nothing."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.asked: list[Any] = []

    def score(self, requests: Sequence[Any]) -> Iterator[Any]:
        from evaluation.scoring import Score, ScoredBatch

        self.asked.extend(requests)
        yield ScoredBatch({index: Score(0.0, False) for index in range(len(requests))}, tokens_computed=0)

    def close(self) -> None:
        """Nothing to give back."""


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder, local_files_only=True)


def instance(context: str, continuation: str) -> Any:
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, (context, continuation), 0)


def scoring_model(backend: RecordingBackend) -> Any:
    """The model that lm-eval sees, with a store of its own."""
    from evaluation.score_store import ScoreStore
    from evaluation.scoring import ScoringLM

    folder = tempfile.TemporaryDirectory()
    model = ScoringLM(lambda: backend, ScoreStore(Path(folder.name) / "scores.jsonl", {}), lambda count: None)
    weakref.finalize(model, folder.cleanup)
    return model


def ask(tokenizer: Any, context: str, continuation: str, max_length: int = 64) -> tuple[list[int], list[int], Any]:
    """Context and continuation ids that the backend gets for one request, and the usage."""
    backend = RecordingBackend(tokenizer, max_length)
    model = scoring_model(backend)
    model.loglikelihood([instance(context, continuation)])
    (request,) = backend.asked
    return list(request.context), list(request.continuation), model.usage


def test_space_at_the_join_belongs_to_the_continuation(tokenizer: Any) -> None:
    expected = (tokenizer.encode("Answer:"), tokenizer.encode(" yes"))
    assert ask(tokenizer, "Answer:", " yes")[:2] == expected
    assert ask(tokenizer, "Answer: ", "yes")[:2] == expected


def test_empty_context_is_conditioned_on_the_end_of_text_once(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    assert ask(tokenizer, "", " yes it is")[:2] == ([end], tokenizer.encode(" yes it is"))
    assert ask(tokenizer, "", "<|endoftext|> yes")[:2] == ([end], tokenizer.encode(" yes"))


@pytest.mark.parametrize(("max_length", "kept"), [(9, 6), (6, 4), (3, 1)])
def test_truncation_cuts_the_context_from_the_left_only(tokenizer: Any, max_length: int, kept: int) -> None:
    whole, answer = tokenizer.encode("one two three four five six"), tokenizer.encode(" seven eight nine")
    context, continuation, usage = ask(tokenizer, "one two three four five six", " seven eight nine", max_length)
    assert continuation == answer
    assert context == whole[-kept:]
    assert usage.contexts_cut == (kept < len(whole))
    assert usage.tokens_asked == kept + len(answer) - 1 <= max_length


def test_continuation_longer_than_the_model_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match=r"3 tokens long, more than the model's context of 2"):
        ask(tokenizer, "one two", " seven eight nine", max_length=2)


def test_continuation_without_a_token_is_refused(tokenizer: Any) -> None:
    with pytest.raises(UserError, match="no token of its own"):
        ask(tokenizer, "one two", "")


def test_each_different_request_is_scored_once(tokenizer: Any) -> None:
    backend = RecordingBackend(tokenizer, 64)
    model = scoring_model(backend)
    requests = [instance("one", " two"), instance("one", " three"), instance("one", " two")]
    assert len(model.loglikelihood(requests)) == 3
    assert len(backend.asked) == 2
    assert model.usage.requests == 3
    assert model.usage.tokens_asked == 3
    model.loglikelihood([*requests, instance("two", " three")])
    assert len(backend.asked) == 3


def test_prompts_are_pinned_by_their_texts_and_order(tokenizer: Any) -> None:
    def pin(*requests: Any) -> str:
        model = scoring_model(RecordingBackend(tokenizer, 64))
        model.loglikelihood(list(requests))
        return str(model.prompts_sha256)

    one, two = instance("one", " two three"), instance("one two", " three")
    assert pin(one, two) == pin(one, two)
    assert len({pin(one), pin(two), pin(one, two), pin(two, one)}) == 4


def test_tasks_that_generate_are_refused(tokenizer: Any) -> None:
    model = scoring_model(RecordingBackend(tokenizer, 8))
    with pytest.raises(NotImplementedError, match="generate_until"):
        model.generate_until([])
    with pytest.raises(NotImplementedError, match="loglikelihood_rolling"):
        model.loglikelihood_rolling([])


def test_scores_do_not_depend_on_what_else_is_scored(model_folder: Path) -> None:
    from evaluation.backends.hf_backend import HFBackend
    from evaluation.scoring import Request

    backend = HFBackend(model_folder, "float32")
    generator = torch.Generator().manual_seed(3)
    contexts = [tuple(torch.randint(0, 50257, (length,), generator=generator).tolist()) for length in (1, 5, 30, 62)]
    requests = [Request(context, answer) for context in contexts for answer in ((5, 6, 7), (5, 9), (8,))]
    together = {index: score for batch in backend.score(requests) for index, score in batch.scores.items()}
    for index, request in enumerate(requests):
        (alone,) = backend.score([request])
        assert together[index].logprob == pytest.approx(alone.scores[0].logprob, abs=1e-4)
        assert together[index].is_greedy == alone.scores[0].is_greedy
    assert alone.tokens_computed == 62
