"""vLLM's life: started, asked, watched. With `engine_options` and `prompt_score` all that imports it (0.32)."""

import argparse
import asyncio
import copy
import os
import signal
import uuid
import zlib
from array import array
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Protocol

from foundation.errors import UserError, one_line
from foundation.vllm_environment import check_head_size
from foundation.vllm_worker import STAGE_BUFFERS
from serving.chat_tokens import chat_counter
from serving.guard.settings import EngineFacts

if TYPE_CHECKING:
    from fastapi import FastAPI


class Engine(Protocol):
    """What the server needs of vLLM's `EngineClient`."""

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        ...

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the engine's processes; blocks."""
        ...


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
        check_head_size(config)
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
        raise UserError(f"the engine did not start: {one_line(error)}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def run_workers(options: argparse.Namespace) -> None:
    """Run this node's part of an engine that another node's server asks, until SIGTERM or Ctrl-C.

    Raises UserError when it does not start, and when it ends by itself: that server has lost it.
    """
    from vllm.entrypoints.cli.serve import run_headless

    options.api_server_count = 0  # as vLLM's own command does
    try:
        run_headless(options)
    except SystemExit:
        return  # what vLLM makes of a signal
    except Exception as error:
        raise UserError(f"the workers did not start: {one_line(error)}") from error
    raise UserError("a worker of this node ended, or the first node did; start both again")


async def openai_app(engine: Any, options: argparse.Namespace) -> "FastAPI":
    """vLLM's own OpenAI-compatible application over a running engine."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    if options.worker_extension_cls == STAGE_BUFFERS:
        await engine.collective_rpc("make_stage_buffers")
    tasks = await engine.get_supported_tasks()
    app: FastAPI = build_app(options, tasks, engine.model_config)
    await init_app_state(engine, app.state, options, tasks)
    return app


def engine_facts(engine: Any, options: argparse.Namespace) -> EngineFacts:
    """What admission and limits have to know of a running engine; all its replicas together."""
    from vllm.renderers.chat_utils import load_chat_template

    # A tokenizer of our own: vLLM's threads set theirs to other lengths, and it must not be used meanwhile.
    tokenizer, config = copy.deepcopy(engine.get_tokenizer()), engine.vllm_config
    blocks = config.cache_config.num_gpu_blocks or 0  # of all replicas
    return EngineFacts(
        models=tuple(options.served_model_name),
        max_model_len=config.model_config.max_model_len,
        count_tokens=lambda text: len(tokenizer.encode(text)),
        count_chat=chat_counter(tokenizer, load_chat_template(options.chat_template)),
        vocab_size=config.model_config.get_vocab_size(),
        token_characters=max(map(len, tokenizer.get_vocab())),
        running_requests=config.scheduler_config.max_num_seqs * len(_replicas(engine)),
        running_tokens=blocks * config.cache_config.block_size or None,
    )


def note_outputs(engine: Any, note: Callable[[], None]) -> None:
    """Call `note` whenever the engine's processes have made something, for whichever request.

    Of several replicas every one must have: one that hangs would else not be noticed behind another that works.
    """
    core, silent = engine.engine_core, set(_replicas(engine))
    receive = core.get_output_async

    async def receive_and_note() -> Any:
        outputs = await receive()
        silent.discard(outputs.engine_index)
        if not silent:
            silent.update(_replicas(engine))
            note()
        return outputs

    core.get_output_async = receive_and_note


async def make_token(engine: Any) -> int:
    """Have every replica of the engine make one token, the proof that it works; returns the first one's id."""
    from vllm import SamplingParams

    async def make(replica: int | None) -> int:
        outputs = [
            output
            async for output in engine.generate(
                {"prompt_token_ids": [0]},
                SamplingParams(max_tokens=1, temperature=0),
                request_id=f"ready-{uuid.uuid4()}",
                data_parallel_rank=replica,
            )
        ]
        token: int = outputs[-1].outputs[0].token_ids[0]
        return token

    count = len(_replicas(engine))
    tokens = await asyncio.gather(*map(make, range(count) if count > 1 else [None]))
    return tokens[0]


def replica_of(engine: Any, tokens: Sequence[int]) -> int | None:
    """The replica that a prompt which begins so is to be computed by, always the same; None where there is one."""
    count = len(_replicas(engine))
    return zlib.crc32(array("q", tokens).tobytes()) % count if count > 1 else None


def _replicas(engine: Any) -> Sequence[int]:
    """Numbers of the data-parallel replicas that this process asks."""
    managed: Sequence[int] = engine.engine_core.engine_ranks_managed
    return managed
