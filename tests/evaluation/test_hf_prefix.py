"""Scores behind prefixes that are computed once, against rows of their own, by architecture."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluation.backends.hf_backend import HFBackend
from evaluation.scoring import Request, Score

VOCABULARY = 50257
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
COMMON = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "initializer_range": 0.3}


def architectures() -> dict[str, Callable[[], Any]]:
    import transformers as hf

    llama = {**SIZES, **COMMON, "num_key_value_heads": 2}
    return {
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=4096, initializer_range=0.3)
        ),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**llama)),
        "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES, **COMMON)),
        "window": lambda: hf.MistralForCausalLM(hf.MistralConfig(**llama, sliding_window=64)),
        "local": lambda: hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], **COMMON
            )
        ),
        "alibi": lambda: hf.BloomForCausalLM(
            hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
        ),
        "state": lambda: hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, initializer_range=0.3)
        ),
    }


def write_model(folder: Path, name: str, tokenizer: Path) -> Path:
    """A model of random weights, and a tokenizer that any architecture loads."""
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    architectures()[name]().save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def build(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HFBackend]:
    """A backend of random weights, by the name of its architecture, with GPT-2's tokenizer."""
    built: dict[str, HFBackend] = {}

    def make(name: str) -> HFBackend:
        if name not in built:
            folder = write_model(tmp_path_factory.mktemp(name), name, model_folder)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                built[name] = HFBackend(folder, "float32")
        return built[name]

    return make


def tokens(length: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist())


def few_shot_requests(documents: int = 12) -> list[Request]:
    """A long prefix of all, contexts of their own, answers that share a beginning; some contexts are longer."""
    examples, further = tokens(700, 1), tokens(500, 2)
    requests = []
    for document in range(documents):
        context = examples + (further if document % 3 == 0 else ()) + tokens(40 + 10 * document, 10 + document)
        answers = [tokens(5, 100), tokens(5, 100)[:2] + tokens(3, 101), tokens(1, 102), tokens(1, 103)]
        requests.extend(Request(context, answer) for answer in answers)
    return requests


def scores(backend: HFBackend, requests: Sequence[Request]) -> tuple[dict[int, Score], int]:
    found: dict[int, Score] = {}
    computed = 0
    for batch in backend.score(requests):
        assert not found.keys() & batch.scores.keys()
        found.update(batch.scores)
        computed += batch.tokens_computed
    assert found.keys() == set(range(len(requests)))
    return found, computed


@torch.inference_mode()
def plain_score(backend: HFBackend, request: Request) -> Score:
    """By the whole model, on a row of its own, with nothing but token ids."""
    ids = torch.tensor([request.context + request.continuation])
    logits = backend._model(input_ids=ids[:, :-1], logits_to_keep=len(request.continuation)).logits
    table = torch.log_softmax(logits[0, -len(request.continuation) :].float(), dim=-1)
    goal = ids[0, -len(request.continuation) :]
    return Score(float(table.gather(1, goal[:, None]).sum()), bool((table.argmax(dim=-1) == goal).all()))


def assert_exact(backend: HFBackend, requests: Sequence[Request], found: dict[int, Score]) -> None:
    for index, request in enumerate(requests):
        expected = plain_score(backend, request)
        assert found[index].logprob == pytest.approx(expected.logprob, abs=1e-4 * len(request.continuation))
        assert found[index].is_greedy == expected.is_greedy


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
def test_scores_behind_a_shared_prefix_are_those_of_rows_of_their_own(
    build: Callable[[str], HFBackend], name: str
) -> None:
    backend = build(name)
    requests = few_shot_requests()
    found, computed = scores(backend, requests)
    assert_exact(backend, requests, found)
    alone = sum(len(request.context) + len(request.continuation) - 1 for request in requests)
    # 700 shared tokens once and 500 of a third of the documents once, in contexts of 12 x (700 + 95) + 4 x 500.
    assert 1200 + 12 * 95 <= computed < alone / 10


@pytest.mark.parametrize("name", ["window", "local", "alibi", "state"])
def test_other_architectures_are_computed_in_plain_rows(build: Callable[[str], HFBackend], name: str) -> None:
    backend = build(name)
    requests = few_shot_requests(documents=3)
    found, computed = scores(backend, requests)
    assert_exact(backend, requests, found)
    assert computed >= sum(len(request.context) for request in requests[::2])


def test_plain_rows_are_announced(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> None:
    folder = write_model(tmp_path_factory.mktemp("window"), "window", model_folder)
    with pytest.warns(UserWarning, match=r"window \(sliding_window: 64\).*a row of its own"):
        HFBackend(folder, "float32")


def test_wrong_hidden_states_are_found_at_the_start(
    build: Callable[[str], HFBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evaluation.backends import hf_forward

    backend = build("llama")
    assert backend._forward.packs_allowed
    honest = hf_forward.row_tensors

    def shifted(*arguments: Any) -> Any:
        ids, positions, mask = honest(*arguments)
        return ids, positions + torch.arange(ids.shape[1]) // 12, mask

    monkeypatch.setattr(hf_forward, "row_tensors", shifted)
    with pytest.warns(UserWarning, match="other hidden states"):
        forward = hf_forward.PackedForward(backend._model, VOCABULARY, backend.max_length)
    assert not forward.packs_allowed


@pytest.mark.parametrize("batch_tokens", [64, 1500, 100_000])
def test_scores_do_not_depend_on_the_batch(
    build: Callable[[str], HFBackend], monkeypatch: pytest.MonkeyPatch, batch_tokens: int
) -> None:
    from evaluation.backends import hf_backend

    backend = build("llama")
    requests = few_shot_requests()
    expected, _ = scores(backend, requests)
    monkeypatch.setattr(hf_backend, "_BATCH_TOKENS", {"cpu": batch_tokens})
    found, _ = scores(backend, requests[::-1])
    for index, score in found.items():
        other = expected[len(requests) - 1 - index]
        assert score.logprob == pytest.approx(other.logprob, abs=5e-4)
        assert score.is_greedy == other.is_greedy


def test_a_prefix_as_long_as_the_context_and_an_answer_that_others_share(build: Callable[[str], HFBackend]) -> None:
    backend = build("gpt2")
    examples = tokens(4092, 5)
    # The second's answer begins inside what the others have as their context.
    requests = [Request(examples, tokens(5, 6)), Request(examples[:3000], examples[3000:3500]), Request(examples, (7,))]
    found, _ = scores(backend, requests)
    assert_exact(backend, requests, found)


def test_every_token_computed_is_counted(build: Callable[[str], HFBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = build("llama")
    through_the_model = 0
    layers = backend._model.base_model.layers

    def count(_module: Any, arguments: tuple[Any, ...], _output: Any) -> None:
        nonlocal through_the_model
        through_the_model += arguments[0].shape[0] * arguments[0].shape[1]

    handle = layers[0].register_forward_hook(count)
    try:
        _, computed = scores(backend, few_shot_requests())
    finally:
        handle.remove()
    assert computed == through_the_model > 0


def test_closing_gives_the_model_back(model_folder: Path) -> None:
    backend = HFBackend(model_folder, "float32")
    backend.close()
    assert not hasattr(backend, "_model")
