"""Where the work is done: Daft, on this machine's cores or on a Ray cluster; the code is the same."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from foundation.errors import UserError, one_line
from training.corpus.lock import working

_DONE, _REFUSED = "=", "!"
_PARENT_CHECK_SECONDS = 0.5
# Daft's words for a worker process that is gone.
_WORKER_DIED = ("UDF process closed the connection", "UDF process has terminated", "ActorDiedError", "Broken pipe")


class DaftEngine:
    """The `Engine` of training/corpus/stage.py.

    `ray_address` ("auto", "ray://HOST:10001", ...) names a cluster that is there already; without it, processes of
    this machine do the work, as many as `workers` (default: one a core). `lock` is a file that workers share while
    they work (training/corpus/lock.py).
    """

    def __init__(self, *, workers: int | None = None, ray_address: str | None = None, lock: Path | None = None) -> None:
        self._ray_address = ray_address
        self._lock = lock
        self._daft: Any = None
        self._workers = workers

    @property
    def workers(self) -> int:
        """How many processes work at a time."""
        if self._workers is None:
            self._workers = self._cluster_cores() if self._ray_address else len(os.sched_getaffinity(0))
        return self._workers

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        """`function` of every item, as they finish; see `Engine.map`.

        Raises a UserError of the function here, and one for a worker process that died.
        """
        if not items:
            return
        daft = self.daft()
        frame = daft.from_pydict({"item": list(items)})
        if self._ray_address:
            frame = frame.into_partitions(min(len(items), 4 * self.workers))
        apply = self._worker_class()(function, self._lock, os.getpid())
        results = frame.select(apply.batch(daft.col("item")).alias("result"))
        with daft.execution_config_ctx(maintain_order=False), _plain_errors():
            for row in results.iter_rows(results_buffer_size=None):
                answer = str(row["result"])
                if answer.startswith(_REFUSED):
                    raise UserError(answer[1:])
                yield answer[1:]

    def daft(self) -> Any:
        """The `daft` module with the right runner set; see `Engine.daft`. Raises UserError when it is not there."""
        if self._daft is None:
            self._daft = _load_daft()
            self._set_runner()
        return self._daft

    def _set_runner(self) -> None:
        wanted = "ray" if self._ray_address else "native"
        # A runner is set once in a process's life.
        current = self._daft.runners._get_runner()
        if current is not None:
            if current.name != wanted:
                raise UserError(f"this process already computes with Daft's {current.name} runner, not {wanted}")
            return
        if self._ray_address:
            _join_cluster(self._ray_address)
            self._daft.set_runner_ray(noop_if_initialized=True)
        else:
            self._daft.set_runner_native()

    def _cluster_cores(self) -> int:
        self.daft()
        import ray

        resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        return max(1, int(resources.get("CPU", 1)))

    def _worker_class(self) -> Any:
        """`_Worker` as a class that Daft runs in processes of its own, one item at a time in each."""
        daft = self.daft()

        class Worker(_Worker):
            batch = daft.method.batch(return_dtype=daft.DataType.string(), batch_size=1)(_Worker.answers)

        return daft.cls(Worker, use_process=True, max_concurrency=self.workers)


class _Worker:
    """What lives in a worker process: the function, and whatever it keeps between items (models)."""

    def __init__(self, function: Callable[[str], str], lock: Path | None, driver: int) -> None:
        self._function = function
        self._lock = lock
        if os.getpid() != driver:
            threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()

    def answers(self, items: Any) -> list[str]:
        """The function's results, or what a UserError says: marked, since exceptions lose their kind on the way."""
        return [self._answer(item) for item in items.to_pylist()]

    def _answer(self, item: str) -> str:
        try:
            with working(self._lock):
                return _DONE + self._function(item)
        except UserError as error:
            return _REFUSED + str(error)


def _end_with_parent(parent: int) -> None:
    """End the process when the one that started it is gone, rather than finish a killed build's shard."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _load_daft() -> Any:
    # Daft reports its use to its makers and draws bars of its own unless told not to.
    os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")
    os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
    # It logs every error that it raises, in fewer words.
    logging.getLogger("daft_local_execution").setLevel(logging.CRITICAL)
    try:
        import daft
        import daft.runners
    except ImportError:
        raise UserError("Daft is not installed; pip install 'mtnlg[corpus]'") from None
    return daft


def _join_cluster(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed; pip install 'mtnlg[corpus-ray]'") from None
    if ray.is_initialized():
        return
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {one_line(error)}") from None


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if any(words in str(error) for words in _WORKER_DIED):
            raise UserError(
                "a worker process died at work (killed, or out of memory?); what is finished is kept: "
                "run the same command again, with fewer --workers if memory is short"
            ) from error
        raise
