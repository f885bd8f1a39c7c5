"""This machine's workers: started, watched, and never left behind."""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from foundation.errors import UserError
from training.config import TrainConfig
from training.watchdog import EXIT_HUNG, hang_report

_SETTLE_SECONDS = 1.0
_SIGNAL_ON_PARENT_DEATH = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def run_local_workers(config: TrainConfig) -> None:
    """Start one process a rank and wait for all. The first failure stops the rest.

    Raises UserError with the failing rank and its reason.
    """
    context = _context()
    failures: SimpleQueue[tuple[int, str]] = context.SimpleQueue()
    port = _free_port()
    workers = [
        context.Process(  # type: ignore[attr-defined]
            target=_worker_main, args=(config, rank, port, failures), name=f"mtnlg-rank-{rank}", daemon=True
        )
        for rank in range(config.layout.world_size)
    ]
    try:
        with _sigterm_forwarded_to(workers):
            for worker in workers:
                worker.start()
            failed = _wait(workers)
    finally:
        _stop(workers)
    if failed:
        raise UserError(_reason(failed, failures, config.out))


def _context() -> BaseContext:
    if _has_gpu():
        # A process that touched a GPU cannot be forked.
        return multiprocessing.get_context("spawn")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Torch and DeepSpeed are imported once, by the server that every rank is forked from.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training.worker"])
    return context


def _has_gpu() -> bool:
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _worker_main(config: TrainConfig, rank: int, port: int, failures: "SimpleQueue[tuple[int, str]]") -> None:
    _die_with_parent()
    world_size = str(config.layout.world_size)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=world_size,
        LOCAL_WORLD_SIZE=world_size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    from training.worker import run_worker

    try:
        run_worker(config)
    except UserError as error:
        failures.put((rank, str(error)))
        sys.exit(2)
    except Exception as error:
        log = config.out / "logs" / f"rank-{rank:05d}.log"
        with log.open("a", encoding="utf-8") as handle:
            traceback.print_exc(file=handle)
        first_line = (str(error).splitlines() or [""])[0]
        failures.put((rank, f"rank {rank} failed: {type(error).__name__}: {first_line} (details in {log})"))
        sys.exit(1)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)


def _wait(workers: list[BaseProcess]) -> dict[int, int]:
    """Wait until all ended well, or one did not; then the status of every rank that had ended badly, by rank."""
    running = {worker.sentinel for worker in workers}
    while running:
        running -= {int(str(sentinel)) for sentinel in wait(list(running))}
        if any(worker.exitcode for worker in workers if worker.sentinel not in running):
            # Peers of a rank that died fail at once, perhaps before it is seen: let all of them end.
            wait([worker.sentinel for worker in workers if worker.exitcode is None], timeout=_SETTLE_SECONDS)
            break
    return {rank: worker.exitcode for rank, worker in enumerate(workers) if worker.exitcode}


@contextmanager
def _sigterm_forwarded_to(workers: list[BaseProcess]) -> Iterator[None]:
    """While open, SIGTERM asks every worker to save and stop."""

    def forward(*_: object) -> None:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, forward)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(workers: list[BaseProcess]) -> None:
    for worker in workers:
        if worker.is_alive():
            # Not terminate: that asks for a checkpoint, which a job that lost a rank cannot make.
            worker.kill()
            worker.join()


def _reason(failed: dict[int, int], failures: "SimpleQueue[tuple[int, str]]", run: Path) -> str:
    # A rank that is killed says nothing, and its peers then fail for want of it: name the killed one.
    killed = [rank for rank, status in failed.items() if status == -signal.SIGKILL]
    if killed:
        return (
            f"rank {killed[0]} was killed (SIGKILL). When nobody did it, the machine ran out of memory: "
            "lower training.micro_batch_size or slice the model further"
        )
    if EXIT_HUNG in failed.values() and hang_report(run).is_file():
        return hang_report(run).read_text(encoding="utf-8")
    if not failures.empty():
        return failures.get()[1]
    rank, status = next(iter(failed.items()))
    return f"rank {rank} ended with status {status}; see {run / 'logs'}"
