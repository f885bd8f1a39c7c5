"""Reading ahead, so that a step never waits for the disk, and measuring it when it does."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """An iterator whose next items are made by a thread; `waited_seconds` adds up what its user waited for.

    An error of the source is raised where its item would have come.
    """

    def __init__(self, source: Iterator[Item], depth: int = 8) -> None:
        self.waited_seconds = 0.0
        self._queue: queue.Queue[Item | Exception] = queue.Queue(depth)
        self._closed = threading.Event()
        threading.Thread(target=self._fill, args=(source,), daemon=True).start()

    def __iter__(self) -> "Prefetcher[Item]":
        return self

    def __next__(self) -> Item:
        started = time.perf_counter()
        item = self._queue.get()
        self.waited_seconds += time.perf_counter() - started
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def _fill(self, source: Iterator[Item]) -> None:
        try:
            for item in source:
                if not self._put(item):
                    return
            self._put(StopIteration())
        except Exception as error:
            self._put(error)

    def _put(self, item: Item | Exception) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False
