"""`/v1/score` against transformers on the same weights, and evaluation through the server."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from evaluation.backends.http_backend import HTTPBackend
from evaluation.scoring import Request
from tests.serving.running_server import END_SECONDS, RunningServer, running_server

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


def ask(server: RunningServer, context: Any, continuations: Any, model: str = "vllm1") -> httpx.Response:
    body = {"model": model, "context": context, "continuations": continuations}
    return httpx.post(f"{server.url}/v1/score", json=body, timeout=END_SECONDS)


def reference(gpt2: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    tokens = torch.tensor([context + continuation])
    with torch.no_grad():
        table = torch.log_softmax(gpt2(tokens).logits[0, len(context) - 1 : -1].float(), dim=-1)
    goal = torch.tensor(continuation)
    return float(table.gather(1, goal[:, None]).sum()), bool((table.argmax(dim=-1) == goal).all())


def test_scores_are_transformers_whatever_is_cached(models: Path) -> None:
    from transformers import AutoModelForCausalLM

    gpt2 = AutoModelForCausalLM.from_pretrained(models / "hf", dtype="float32")
    generator = torch.Generator().manual_seed(3)
    requests = []
    for length in (1, 2, 31, 32, 33, 64, 100, 120):
        context = torch.randint(0, 256, (length,), generator=generator).tolist()
        answers = [torch.randint(0, 256, (count,), generator=generator).tolist() for count in (1, 3, 5)]
        likeliest = int(gpt2(torch.tensor([context])).logits[0, -1].argmax())
        requests.append((context, [*answers, [likeliest]]))
    with running_server(str(models / "vllm1"), "--block-size", "32") as server:
        for context, answers in [*requests, *requests]:  # the second time all of it is cached
            scores = ask(server, context, answers).json()["scores"]
            for answer, score in zip(answers, scores, strict=True):
                logprob, greedy = reference(gpt2, context, answer)
                assert score["logprob"] == pytest.approx(logprob, abs=1e-3)
                assert score["is_greedy"] == greedy
                assert len(score["token_logprobs"]) == len(answer)
        assert_evaluation_uses_it(server, models, requests, gpt2)
        assert_refusals(server)


def assert_evaluation_uses_it(server: RunningServer, models: Path, requests: Any, gpt2: Any) -> None:
    backend = HTTPBackend(server.url, tokenizer=models / "hf")
    asked = [Request(tuple(context), tuple(answer)) for context, answers in requests for answer in answers]
    found = {index: score for batch in backend.score(asked) for index, score in batch.scores.items()}
    backend.close()
    for index, request in enumerate(asked):
        logprob, greedy = reference(gpt2, list(request.context), list(request.continuation))
        assert found[index].logprob == pytest.approx(logprob, abs=1e-3)
        assert found[index].is_greedy == greedy


def assert_refusals(server: RunningServer) -> None:
    texts = ask(server, "the", [" the"]).json()["scores"]
    assert len(texts) == 1
    for context, continuations, word in (
        ("the", [[1]], "both be texts"),
        ("the", [""], "no token of its own"),
        ([1] * 127, [[1, 2]], "more than 127"),
        ([1], [[100000]], "vocabulary"),
    ):
        response = ask(server, context, continuations)
        assert response.status_code == 400, response.text
        assert word in response.json()["error"]["message"]
    assert ask(server, [1], [[2]], model="other").status_code == 404
    assert ask(server, [1], []).status_code in (400, 422)
