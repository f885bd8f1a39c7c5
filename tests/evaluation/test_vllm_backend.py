"""The backend `vllm` against transformers, one request at a time, in fp32; its cache; its ends."""

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from evaluation.backends.vllm_backend import VLLMBackend
from evaluation.scoring import Request, Score
from foundation.errors import UserError
from foundation.vllm_environment import shared_memory_of
from tests.evaluation.conftest import MakeModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

POSITIONS = 160
BLOCK = 32  # on a CPU
VOCABULARY = 1000  # tokens that the requests use


@pytest.fixture(scope="module")
def folder(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 whose attention heads have a size that vLLM's CPU kernels know."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("served")
    source = make_model()
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(source / name, folder)
    torch.manual_seed(3)
    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=POSITIONS, initializer_range=0.2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[VLLMBackend]:
    with opened(folder, {}) as (backend, _):
        yield backend


@contextlib.contextmanager
def opened(folder: Path, options: dict[str, Any]) -> Iterator[tuple[VLLMBackend, list[psutil.Process]]]:
    """A backend and its processes, of which none may be left when it is closed."""
    others = set(psutil.Process().children(recursive=True))
    backend = VLLMBackend(folder, "float32", options)
    processes = [process for process in psutil.Process().children(recursive=True) if process not in others]
    try:
        yield backend, processes
    finally:
        backend.close()
    assert not [process for process in processes if runs(process)]


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def tokens(count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY, (count,), generator=generator).tolist())


@torch.inference_mode()
def alone(folder: Path, requests: Sequence[Request]) -> list[Score]:
    """Each request in a forward pass of its own, by transformers."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for request in requests:
        row = torch.tensor([(request.context + request.continuation)[:-1]])
        table = model(row).logits[0, len(request.context) - 1 :].log_softmax(-1)
        goal = torch.tensor(request.continuation)
        logprob = table.gather(1, goal[:, None]).sum().item()
        scores.append(Score(logprob, bool((table.argmax(-1) == goal).all())))
    return scores


def run(backend: VLLMBackend, requests: Sequence[Request]) -> tuple[list[Score], int]:
    """Scores in order, each given once, and the tokens that went through the model."""
    found: dict[int, Score] = {}
    computed = 0
    for batch in backend.score(requests):
        assert not found.keys() & batch.scores.keys()
        found |= batch.scores
        computed += batch.tokens_computed
    return [found[index] for index in range(len(requests))], computed


def check(backend: VLLMBackend, folder: Path, requests: Sequence[Request]) -> int:
    """Compare with `alone`; tokens that went through the model."""
    scores, computed = run(backend, requests)
    for request, score, reference in zip(requests, scores, alone(folder, requests), strict=True):
        assert score.logprob == pytest.approx(reference.logprob, abs=1e-3), len(request.context)
        assert score.is_greedy == reference.is_greedy
    return computed


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1])
def test_contexts_around_the_ends_of_blocks(backend: VLLMBackend, folder: Path, length: int) -> None:
    context = tokens(length, seed=1)
    # One token, two that begin alike, a long one, and one that parts from it at the end of its first block.
    long = tokens(40, seed=2)
    part = (BLOCK - length) % BLOCK
    answers = [(5,), (6,), (7, 8), (7, 9), long, (*long[:part], 10, 11), long[:5]]
    check(backend, folder, [Request(context, answer) for answer in answers])


def test_examples_before_every_question_are_computed_once(backend: VLLMBackend, folder: Path) -> None:
    examples = tokens(3 * BLOCK, seed=3)
    requests = [
        Request(examples + tokens(4, seed=10 + doc), tokens(5, seed=100 + 4 * doc + choice))
        for doc in range(8)
        for choice in range(4)
    ]
    computed = check(backend, folder, requests)
    asked = sum(len(request.context) + len(request.continuation) - 1 for request in requests)
    assert computed < asked / 5


def test_the_same_requests_again_are_as_exact(backend: VLLMBackend, folder: Path) -> None:
    context = tokens(2 * BLOCK, seed=4)
    requests = [Request(context, (1, 2, 3)), Request(context, (1, 2, 3)), Request(context, (1, 2, 4))]
    assert check(backend, folder, requests) == check(backend, folder, requests)


def test_requests_of_the_greatest_length(backend: VLLMBackend, folder: Path) -> None:
    assert backend.max_length == POSITIONS
    whole = tokens(POSITIONS + 1, seed=5)
    check(backend, folder, [Request(whole[:-1], whole[-1:]), Request(whole[:-9], whole[-9:]), Request((1,), whole[1:])])


def test_greedy_answers_are_recognised(backend: VLLMBackend, folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    context = tokens(20, seed=6)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    written = tuple(model.generate(torch.tensor([context]), max_new_tokens=6, do_sample=False)[0, 20:].tolist())
    scores, _ = run(
        backend, [Request(context, written), Request(context, (*written[:-1], 1)), Request(context, written[:1])]
    )
    assert [score.is_greedy for score in scores] == [True, False, True]


def test_nothing_to_score(backend: VLLMBackend) -> None:
    assert run(backend, []) == ([], 0)


def test_replicas_share_the_requests(folder: Path) -> None:
    with opened(folder, {"data_parallel_size": 2}) as (backend, processes):
        assert len(processes) == 2
        check(backend, folder, [Request(tokens(9, seed=doc // 2), tokens(3, seed=50 + doc)) for doc in range(12)])


@pytest.mark.parametrize("option", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_a_model_over_two_processes(folder: Path, option: str) -> None:
    with opened(folder, {option: 2}) as (backend, processes):
        assert len(processes) > 2
        check(backend, folder, [Request(tokens(40, seed=doc // 2), tokens(5, seed=50 + doc)) for doc in range(6)])
        # Of these processes alone: other engines may run on the machine.
        files = shared_memory_of(processes)
    assert not [path for path in files if path.exists()]


def test_a_model_that_vllm_refuses(model_folder: Path) -> None:
    others = set(psutil.Process().children())
    with pytest.raises(UserError, match=r"attention heads of size 8; .* --backend hf") as caught:
        VLLMBackend(model_folder, "float32", {})
    assert "\n" not in str(caught.value)
    assert set(psutil.Process().children()) <= others


def test_an_option_that_vllm_does_not_have(folder: Path) -> None:
    with pytest.raises(UserError, match="no_such_option"):
        VLLMBackend(folder, "float32", {"no_such_option": 1})


def test_an_engine_that_dies_is_reported_and_the_backend_closed(folder: Path) -> None:
    with opened(folder, {}) as (backend, processes):
        batches = backend.score([Request(tokens(POSITIONS - 10, seed=doc), (1, 2)) for doc in range(600)])
        next(batches)
        for process in processes:
            process.kill()
        with pytest.raises(UserError, match="vLLM stopped while scoring: its process ended"):
            list(batches)
        assert not [process for process in processes if process.is_running()]


def test_a_caller_that_is_killed_leaves_no_engine(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from evaluation.backends.vllm_backend import VLLMBackend\n"
        "backend = VLLMBackend(Path(sys.argv[1]), 'float32', {}); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        engines = psutil.Process(caller.pid).children(recursive=True)
        caller.kill()
    assert engines
    psutil.wait_procs(engines, timeout=20)
    assert not [process for process in engines if runs(process)]
