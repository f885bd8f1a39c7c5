"""The served model is the trained model: the same greedy tokens from every path, through the real client."""

from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.serving.greedy import (
    LENGTH,
    PROMPTS,
    greedy_tokens,
    prompt_log_probabilities,
    served_log_probabilities,
    served_tokens,
    training_logits,
    transformers_logits,
)
from tests.serving.running_server import running_server

pytest.importorskip("vllm")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_trained_exported_and_served_continue_alike(models: Path, size: int) -> None:
    expected, lead = greedy_tokens(training_logits(models / "run"), PROMPTS, LENGTH)
    assert lead > 1e-4, "the test model's choices are too close to tell rounding from an error"
    assert greedy_tokens(transformers_logits(models / "hf"), PROMPTS, LENGTH)[0] == expected
    assert len({tuple(tokens) for tokens in expected}) > len(PROMPTS) // 2, "the test model repeats itself"

    with running_server(str(models / f"vllm{size}")) as server:
        assert served_tokens(server.url, f"vllm{size}", PROMPTS, LENGTH) == expected
        for prompt in (PROMPTS[0], PROMPTS[3] + expected[3]):
            scores = prompt_log_probabilities(training_logits(models / "run"), prompt)
            assert served_log_probabilities(server.url, f"vllm{size}", prompt) == pytest.approx(scores, abs=1e-3)
        if size == 2:
            _streaming(server.url)
            _routes(server.url)
        assert server.stop() == 0


def _streaming(url: str) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        options = {"model": "vllm2", "prompt": "hello", "max_tokens": 12, "temperature": 0}
        whole = client.completions.create(**options).choices[0].text  # type: ignore[call-overload]
        pieces = [event.choices[0].text for event in client.completions.create(**options, stream=True)]  # type: ignore[call-overload]
        assert len(pieces) > 1
        assert "".join(pieces) == whole
        scored = client.completions.create(**options, logprobs=1).choices[0].logprobs  # type: ignore[call-overload]
        assert len(scored.token_logprobs) == 12
        with pytest.raises(BadRequestError, match="128"):
            client.completions.create(model="vllm2", prompt="x" * 500, max_tokens=1)


def _routes(url: str) -> None:
    assert httpx.get(f"{url}/ready").json() == {"ready": True, "reason": None}
    assert httpx.get(f"{url}/live").status_code == 200
    assert httpx.get(f"{url}/version").json()["model"] == "vllm2"
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["vllm2"]
    assert "vllm:generation_tokens_total" in httpx.get(f"{url}/metrics").text


@pytest.mark.slow
def test_hf_folder_is_served_as_it_is(models: Path) -> None:
    expected, _ = greedy_tokens(transformers_logits(models / "hf"), PROMPTS[:3], LENGTH)
    with running_server(str(models / "hf"), "--max-model-len", "64", "--served-model-name", "mine") as server:
        assert served_tokens(server.url, "mine", PROMPTS[:3], LENGTH) == expected
