"""One rank of a training job: joins the others, trains, and turns failures into one clear line."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import deepspeed  # imported here, once, by the server that workers are forked from
import torch
import torch.distributed as dist
from deepspeed.utils import logger as deepspeed_logger
from rich.console import Console

from foundation.errors import UserError
from training.config import TrainConfig
from training.pretrain import pretrain


def run_worker(config: TrainConfig) -> None:
    """Train as the rank that the environment names (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).

    Raises UserError when the number of ranks does not fit the layout, or memory runs out.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != config.layout.world_size:
        raise UserError(
            f"{world_size} workers were started, but the layout {config.layout} needs {config.layout.world_size}"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True) if rank == 0 else None
    with _library_output_in(config, rank), _out_of_memory_explained(rank):
        _initialise_process(world_size)
        try:
            pretrain(config, rank, console)
        finally:
            dist.destroy_process_group()


def _initialise_process(world_size: int) -> None:
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_size))
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Only inference uses it, and it takes a compiler and a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("nccl" if on_gpu else "gloo", auto_mpi_discovery=False, verbose=False)


@contextmanager
def _library_output_in(config: TrainConfig, rank: int) -> Iterator[None]:
    """Send standard output, where DeepSpeed reports on itself, to the run folder's log of this rank."""
    log = config.out / "logs" / f"rank-{rank:05d}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = os.dup(1)
    with log.open("ab") as handle:
        os.dup2(handle.fileno(), 1)
    deepspeed_logger.setLevel("WARNING")
    # Each rank would say once which of torch's collectives DeepSpeed should rename its calls to.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _out_of_memory_explained(rank: int) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not any(
            sign in text for sign in ("out of memory", "can't allocate memory", "Cannot allocate memory")
        ):
            raise
        raise UserError(
            f"rank {rank} ran out of memory ({text.splitlines()[0] if text else 'no details'}); lower "
            "training.micro_batch_size, or slice the model further with layout.tensor_parallel_size or "
            "layout.pipeline_parallel_size"
        ) from error
