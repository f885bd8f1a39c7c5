"""The real `openai` client against a server: what it sends is understood, and what it gets it can read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.keys import add_key
from tests.serving.running_server import END_SECONDS, running_server

pytest.importorskip("vllm")
openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow

MODEL = "vllm1"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
HELLO = [{"role": "user", "content": "the cat"}]
PER_MINUTE = 30  # so that two seconds bring one request


class Served:
    """A server's address and its keys."""

    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.url = url
        self.keys = keys

    def client(self, key: str = "all", retries: int = 0) -> Any:
        """A client with the secret of the key called `key`, or with `key` itself."""
        secret = self.keys.get(key, key)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=secret, max_retries=retries, timeout=END_SECONDS)


@pytest.fixture(scope="module")
def served(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("openai")
    file, template = folder / "keys.json", folder / "chat.jinja"
    template.write_text(TEMPLATE)
    keys = {
        "all": add_key(file, "all"),
        "other": add_key(file, "other", models=("other",)),
        "few": add_key(file, "few", requests_per_minute=PER_MINUTE),
    }
    log = str(folder / "access.jsonl")
    options = ("--keys", str(file), "--chat-template", str(template), "--access-log", log)
    with running_server(str(models / MODEL), *options) as server:
        yield Served(server.url, keys)


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    return served.client()


def complete(client: Any, **changes: Any) -> Any:
    return client.completions.create(**{"model": MODEL, "prompt": "the", "max_tokens": 12, "temperature": 0, **changes})


def chat(client: Any, **changes: Any) -> Any:
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0, **changes}
    return client.chat.completions.create(**fields)


def tokens_of(models: Path, text: str) -> int:
    """Counted by the tokenizer itself."""
    from transformers import AutoTokenizer

    return len(AutoTokenizer.from_pretrained(models / MODEL).encode(text))


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_completion_and_its_usage(client: Any, models: Path) -> None:
    answer = complete(client)
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens_of(models, "the"), 12)
    assert len(answer._request_id) == 32


def test_stream_is_the_same_text(client: Any) -> None:
    chunks = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == complete(client).choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_tells_usage_when_asked(client: Any, models: Path) -> None:
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (tokens_of(models, "the"), 12)
    talked = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert talked[-1].usage.completion_tokens == 12


def test_chat_goes_through_the_template(client: Any, models: Path) -> None:
    answer = chat(client)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == tokens_of(models, "user: the cat\nassistant: ")
    same = complete(client, prompt="user: the cat\nassistant: ")
    assert answer.choices[0].message.content == same.choices[0].text


def test_chat_stream_is_the_same_text(client: Any) -> None:
    chunks = [chunk for chunk in chat(client, stream=True) if chunk.choices]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == chat(client).choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_log_probabilities(client: Any) -> None:
    found = complete(client, logprobs=3).choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == 12
    for logprob, others in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert logprob <= 0
        assert logprob == pytest.approx(max(others.values()))  # greedy takes the likeliest
    entries = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(entries) == 12
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_stop_ends_before_the_text(client: Any) -> None:
    whole = complete(client).choices[0].text
    stop = next(part for part in (whole[place : place + 2] for place in range(2, len(whole))) if part.strip())
    answer = complete(client, stop=[stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_several_choices_and_prompts(client: Any) -> None:
    answer = complete(client, n=3, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) > 1
    assert answer.usage.completion_tokens <= 36
    assert len(complete(client, prompt=["a", "b"]).choices) == 2
    assert len(chat(client, n=2, temperature=1).choices) == 2


def test_seed_decides_the_text(client: Any) -> None:
    texts = [complete(client, temperature=1, seed=seed).choices[0].text for seed in (1, 2, 3, 1, 2, 3)]
    assert texts[:3] == texts[3:]
    assert len(set(texts)) > 1


def test_keys_that_are_wrong_or_bound(served: Served) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        complete(served.client("mtnlg-wrong"))
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.PermissionDeniedError) as bound:
        complete(served.client("other"))
    assert (bound.value.code, bound.value.param) == ("model_not_allowed", "model")


def test_model_that_is_not_there(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        complete(client, model="gpt-5")
    assert error.value.code == "model_not_found"
    assert "vllm1" in error.value.message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"max_tokens": -1}, "invalid_value"),
        ({"prompt": "a" * 500}, "context_length_exceeded"),
        ({"prompt": "the", "max_tokens": 128}, "context_length_exceeded"),
        ({"prompt": ""}, "invalid_value"),
        ({"temperature": -1}, "invalid_value"),
        ({"stop": ["a"] * 9}, "invalid_value"),
        ({"n": 1000}, "invalid_value"),
        ({"logprobs": "many"}, "invalid_type"),
    ],
    ids=str,
)
def test_bad_requests(client: Any, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, **changes)
    assert error.value.code == code
    assert error.value.type == "invalid_request_error"


def test_bad_chats(client: Any) -> None:
    for changes in ({"messages": []}, {"messages": [{"role": "user", "content": "a" * 500}]}, {"top_logprobs": 99}):
        with pytest.raises(openai.BadRequestError):
            chat(client, **changes)


def test_body_that_is_too_large(client: Any) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        complete(client, prompt="a" * (5 << 20))
    assert (error.value.status_code, error.value.code) == (413, "body_too_large")


def test_rate_limit_is_an_exception_and_its_time_is_waited_for(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.keys['few']}"}
    for _ in range(2 * PER_MINUTE):  # requests that are refused count too
        answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": "", "model": MODEL}, headers=headers)
        if answer.status_code == 429:
            break
    assert answer.status_code == 429
    with pytest.raises(openai.RateLimitError) as error:
        complete(served.client("few"))
    assert error.value.code == "requests_per_minute"
    assert 1 <= int(error.value.response.headers["retry-after"]) <= 60 / PER_MINUTE
    # Left to itself the client tries again after half a second and a second: once is not enough unless it waits.
    assert complete(served.client("few", retries=1)).choices[0].text
