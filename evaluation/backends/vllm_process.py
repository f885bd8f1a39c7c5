"""The process in which vLLM runs, one for each data-parallel replica (written for vLLM 0.32).

A process of its own keeps vLLM's environment variables, threads, patches and remains away from the caller, and its end
frees everything. It is started with the file descriptor of a connection, reads a `Setup` from it, answers with the
cache's block size, and then answers every list of `PackedJob`s with lists of `(index, JobScores)`, then None. A string
instead of any answer is why it cannot go on. It ends when the connection does.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import active_children
from multiprocessing.connection import Connection
from typing import Any

from evaluation.backends.token_sequences import TokenSequence
from evaluation.backends.vllm_plan import Job, JobScores
from foundation.errors import one_line
from foundation.vllm_environment import check_head_size, shared_memory_of
from foundation.vllm_worker import STAGE_BUFFERS

# On a CPU: vLLM's kernels want multiples of 32 tokens, and smaller blocks are shared further.
_CPU_BLOCK = 32
# On a CPU: tokens of one step; more save nothing there and take memory.
_CPU_STEP_TOKENS = 2048
# Requests handed to vLLM ahead of its work: its waiting queue stays short, its batches full.
_AHEAD = 2


@dataclass(frozen=True)
class Setup:
    """What to load: `options` are vLLM's engine arguments; `max_length` is the longest input in tokens."""

    folder: str
    dtype: str
    max_length: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class PackedJob:
    """A `Job` without the tokens that it shares with the one before."""

    shared: int
    own: TokenSequence
    targets: TokenSequence
    first_row: int


def pack_jobs(jobs: Sequence[Job]) -> list[PackedJob]:
    """Jobs as they travel: the examples before thousands of questions only once."""
    return [PackedJob(job.shared, job.prompt[job.shared :], job.targets, job.first_row) for job in jobs]


def unpack_jobs(packed: Sequence[PackedJob]) -> Iterator[Job]:
    """The jobs again, one at a time."""
    prompt: TokenSequence = ()
    for job in packed:
        prompt = prompt[: job.shared] + job.own
        yield Job(prompt, job.shared, job.targets, job.first_row)


def serve(connection: Connection) -> None:
    """Load the model, then score until the connection is closed."""
    try:
        engine = Engine(connection.recv())
    except Exception as error:
        connection.send(one_line(error))
        return
    try:
        connection.send(engine.block_size)
        while True:
            for finished in engine.score(connection.recv()):
                connection.send(finished)
            connection.send(None)
    except (EOFError, BrokenPipeError):
        pass  # the caller closed, or is gone
    except Exception as error:
        connection.send(one_line(error))
    finally:
        engine.close()


class Engine:
    """vLLM's engine core in this process, without the parts that make text. Imports vLLM: takes seconds."""

    def __init__(self, setup: Setup) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.core_client import InprocClient
        from vllm.v1.executor import Executor

        cpu = current_platform.is_cpu()
        defaults = {"enforce_eager": True, "block_size": _CPU_BLOCK, "max_num_batched_tokens": _CPU_STEP_TOKENS}
        arguments = EngineArgs(
            **{
                "model": setup.folder,
                "dtype": setup.dtype,
                "skip_tokenizer_init": True,
                # One more than goes through the model: vLLM wants room for the token that it makes.
                "max_model_len": setup.max_length + 1,
                "enable_prefix_caching": True,
                "disable_log_stats": True,
                "worker_extension_cls": STAGE_BUFFERS,
                **(defaults if cpu else {}),
                **setup.options,
            }
        )
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
        if cpu:
            check_head_size(config)
            _size_cpu_cache(config)
        self._client = InprocClient(config, Executor.get_class(config), log_stats=False)
        self._shared_memory = shared_memory_of(active_children())
        if cpu and config.parallel_config.pipeline_parallel_size > 1:
            self._client.collective_rpc("make_stage_buffers")
        self.block_size: int = config.cache_config.block_size
        self._ahead = _AHEAD * config.scheduler_config.max_num_seqs
        self._made = 0

    def score(self, packed: Sequence[PackedJob]) -> Iterator[list[tuple[int, JobScores]]]:
        """Score jobs, in lists as they finish."""
        # What an earlier call left in the cache would hide rows that this one needs.
        self._client.reset_prefix_cache()
        jobs = enumerate(unpack_jobs(packed))
        live: dict[str, tuple[int, Job]] = {}
        while True:
            while len(live) < self._ahead and (following := next(jobs, None)) is not None:
                live[self._start(following[1])] = following
            if not live:
                return
            finished = []
            for output in self._client.get_output().outputs:
                index, job = live.pop(output.request_id)
                scores = _read_scores(output, job)
                if scores.cached > job.shared:
                    live[self._start(job, read_cache=False)] = index, job
                else:
                    finished.append((index, scores))
            yield finished

    def _start(self, job: Job, *, read_cache: bool = True) -> str:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        self._made += 1
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0,
            detokenize=False,
            prompt_logprobs=0 if job.first_row < len(job.prompt) - 1 else None,
            logprob_token_ids=list(job.targets) or None,
            # vLLM's default with prompt_logprobs is not to read the cache, because rows would be missing.
            skip_reading_prefix_cache=not read_cache,
        )
        request = EngineCoreRequest(
            request_id=str(self._made),
            prompt_token_ids=list(job.prompt),
            mm_features=None,
            sampling_params=parameters,
            pooling_params=None,
            arrival_time=float(self._made),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._client.add_request(request)
        return str(self._made)

    def close(self) -> None:
        """Stop vLLM's workers and remove the shared memory that they leave behind when they are killed."""
        self._client.shutdown()
        for path in self._shared_memory:
            path.unlink(missing_ok=True)


def _read_scores(output: Any, job: Job) -> JobScores:
    """Of the one token that a request makes: vLLM's numbers as `JobScores`."""
    cached: int = output.prefill_stats.num_cached_tokens
    targets = []
    if job.targets:
        likeliest = output.new_token_ids[0]
        values = output.new_logprobs.logprobs[0].tolist()[1:]  # the first is that of the token made
        targets = [(value, token == likeliest) for value, token in zip(values, job.targets, strict=False)]
    rows = []
    count = len(job.prompt) - 1 - max(job.first_row, cached)
    if count > 0:
        # From the end: in the front there may be rows that were not computed, or none for them.
        tensors = output.new_prompt_logprobs_tensors
        values = tensors.logprobs[-count:, 0].tolist()
        ranks = tensors.selected_token_ranks[-count:].tolist()
        rows = [(value, rank == 1) for value, rank in zip(values, ranks, strict=True)]
    return JobScores(cached, targets, rows)


def _size_cpu_cache(config: Any) -> None:
    """Room for the longest input and some steps, unless the user has set it: vLLM would take most of the memory."""
    if config.cache_config.kv_cache_memory_bytes is not None:
        return
    model, parallel = config.model_config, config.parallel_config
    heads = model.get_num_kv_heads(parallel) * model.get_head_size()
    token_bytes = 2 * model.get_num_layers(parallel) * heads * model.dtype.itemsize
    tokens = 2 * (model.max_model_len + config.scheduler_config.max_num_batched_tokens)
    config.cache_config.kv_cache_memory_bytes = tokens * token_bytes


if __name__ == "__main__":
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    serve(Connection(int(sys.argv[1])))
