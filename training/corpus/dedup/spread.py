"""Who does the work on the shards: threads of this process, or the processes of the engine."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

from training.corpus.stage import Engine, Work

# Below this, starting processes takes longer than the work, which lets threads run side by side.
_SMALL_BYTES = 1 << 30


@dataclass
class ThreadEngine:
    """An `Engine` whose work is done by threads; for functions that leave the interpreter's lock alone."""

    engine: Engine

    @property
    def workers(self) -> int:
        """How many threads work at a time."""
        return min(self.engine.workers, os.cpu_count() or 1)

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        """`function` of every item, as they finish."""
        pool = ThreadPoolExecutor(self.workers)
        try:
            for future in as_completed([pool.submit(function, item) for item in items]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def daft(self) -> Any:
        """As the engine's."""
        return self.engine.daft()


def near(work: Work) -> Work:
    """The work with threads to do it, where the input is small."""
    size = sum(shard.path.stat().st_size for shard in work.shards)
    return replace(work, engine=ThreadEngine(work.engine)) if size < _SMALL_BYTES else work


def spread(work: Work, what: str, function: Callable[[str], str], items: Sequence[str]) -> None:
    """`function` of every item, with progress."""
    work.report(what, 0, len(items))
    for done, _ in enumerate(work.engine.map(function, items), 1):
        work.report(what, done, len(items))
