"""Four ways to score the same prompts: the two backends of `mtnlg evaluate`, and lm-eval's own.

Each is a process of its own, which gets pairs of texts and gives their log-likelihoods; tokenisation is part of it.
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Prompt = tuple[str, str]  # context, continuation
Scorer = Callable[[Sequence[Prompt], int], tuple[list[tuple[float, bool]], int | None]]

# Tokens in a batch of lm-eval's `hf`, which holds the logits of all of them; ours takes as many on a CPU.
_BATCH_TOKENS = 4096
_GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class Cell:
    """A task at a number of shots: what is asked, and what lm-eval makes of the answers."""

    task: str
    shots: int
    prompts: tuple[Prompt, ...]
    documents: tuple[tuple[Any, int], ...]  # a row, and its number of prompts

    @property
    def name(self) -> str:
        """As results are named."""
        return f"{self.task}-{self.shots}shot"


@dataclass(frozen=True)
class Scored:
    """One scoring of a cell: log-likelihood and whether greedy decoding writes it, a prompt each."""

    seconds: float
    scores: list[tuple[float, bool]]
    tokens_computed: int | None


def make_cell(task: Any, name: str, shots: int, documents: int) -> Cell:
    """The first documents' prompts, with the same examples before all of them."""
    from evaluation.few_shot import set_examples

    set_examples(task, shots, 1234, fixed=True)
    prompts: list[Prompt] = []
    rows = []
    for index, row in zip(range(documents), task.eval_docs, strict=False):
        context = task.fewshot_context(row, num_fewshot=shots)
        requests = task.construct_requests(doc=row, ctx=context, metadata=(name, index, 1))
        requests = requests if isinstance(requests, list) else [requests]
        prompts.extend(request.args for request in requests)
        rows.append((row, len(requests)))
    return Cell(name, shots, tuple(prompts), tuple(rows))


def document_metrics(task: Any, cell: Cell, scores: Sequence[tuple[float, bool]]) -> list[dict[str, float]]:
    """lm-eval's metrics of each document."""
    metrics, start = [], 0
    for row, prompts in cell.documents:
        metrics.append(task.process_results(row, list(scores[start : start + prompts])))
        start += prompts
    return metrics


@contextlib.contextmanager
def opened(way: str, folder: Path, dtype: str) -> Iterator[Callable[[Cell], Scored]]:
    """Load the model one way, in a process that ends with the block; what it yields scores a cell."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(way, folder, dtype, theirs))
    process.start()
    assert process.pid is not None  # noqa: S101 - it was started
    group = process.pid
    theirs.close()

    def score(cell: Cell) -> Scored:
        ours.send((cell.prompts, max(1, _BATCH_TOKENS // max(map(_words, cell.prompts)))))
        scored = ours.recv()
        if not isinstance(scored, Scored):
            raise RuntimeError(f"{way} failed:\n{scored}")
        return scored

    try:
        if (answer := ours.recv()) != "ready":
            raise RuntimeError(f"{way} did not start:\n{answer}")
        yield score
    finally:
        ours.close()
        process.join(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)  # lm-eval leaves vLLM's processes to themselves
        process.join()


def _words(prompt: Prompt) -> int:
    """About as many tokens; for the size of a batch only."""
    return 4 * len(" ".join(prompt).split()) // 3


def _work(way: str, folder: Path, dtype: str, connection: Connection) -> None:
    os.setsid()
    # Both cores for everyone; vLLM would leave one to its scheduler.
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with tempfile.TemporaryDirectory(prefix="mtnlg-evaluate-") as scratch, connection:
        try:
            _answer(connection, WAYS[way](folder, dtype, Path(scratch)))
        except EOFError:
            pass  # the caller closed
        except Exception:
            connection.send(traceback.format_exc())


def _answer(connection: Connection, scorer: Scorer) -> None:
    scorer([("The capital of France is", " Paris"), ("A", " longer answer")], 1)  # what is made at the first use
    connection.send("ready")
    while True:
        prompts, batch = connection.recv()
        started = time.perf_counter()
        scores, tokens = scorer(prompts, batch)
        connection.send(Scored(time.perf_counter() - started, scores, tokens))


def _ours(name: str) -> Callable[[Path, str, Path], Scorer]:
    def make(folder: Path, dtype: str, scratch: Path) -> Scorer:
        if name == "vllm":
            del os.environ["VLLM_CPU_KVCACHE_SPACE"]
        from evaluation.backends.choice import BackendChoice
        from evaluation.score_store import ScoreStore
        from evaluation.scoring import ScoringLM

        backend = BackendChoice(name, dtype).open(str(folder))
        calls = count()

        def score(prompts: Sequence[Prompt], _batch: int) -> tuple[list[tuple[float, bool]], int | None]:
            with ScoreStore(scratch / f"{next(calls)}.jsonl", {}) as store:
                model = ScoringLM(lambda: backend, store, lambda scored: None)
                return model.loglikelihood(_instances(prompts)), model.usage.tokens_computed

        return score

    return make


def _lm_eval_hf(folder: Path, dtype: str, _scratch: Path) -> Scorer:
    from lm_eval.models.huggingface import HFLM

    model = HFLM(str(folder), device="cpu", dtype=dtype)

    def score(prompts: Sequence[Prompt], batch: int) -> tuple[list[tuple[float, bool]], int | None]:
        model.batch_size_per_gpu = batch
        return model.loglikelihood(_instances(prompts), disable_tqdm=True), None

    return score


def _lm_eval_vllm(folder: Path, dtype: str, scratch: Path) -> Scorer:
    _name_vllm(scratch)
    os.environ.pop("TQDM_DISABLE", None)  # vLLM divides by its progress bar's time
    from lm_eval.models.vllm_causallms import VLLM

    model = VLLM(str(folder), dtype=dtype)

    def score(prompts: Sequence[Prompt], _batch: int) -> tuple[list[tuple[float, bool]], int | None]:
        return model.loglikelihood(_instances(prompts), disable_tqdm=True), None

    return score


def _name_vllm(scratch: Path) -> None:
    """lm-eval asks for the version of `vllm`; the build for CPUs is called vllm-cpu."""
    import sys
    from importlib.metadata import PackageNotFoundError, version

    with contextlib.suppress(PackageNotFoundError):
        version("vllm")
        return
    found = f"{version('vllm-cpu')}+cpu"
    metadata = scratch / f"vllm-{found}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found}\n", encoding="utf-8")
    sys.path.append(str(scratch))


def _instances(prompts: Sequence[Prompt]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [
        Instance("loglikelihood", {}, prompt, index, metadata=("benchmark", index, 1))
        for index, prompt in enumerate(prompts)
    ]


OURS = ("vllm", "hf")
PEERS = ("lm-eval vllm", "lm-eval hf")
WAYS: dict[str, Callable[[Path, str, Path], Scorer]] = {
    "vllm": _ours("vllm"),
    "hf": _ours("hf"),
    "lm-eval vllm": _lm_eval_vllm,
    "lm-eval hf": _lm_eval_hf,
}
