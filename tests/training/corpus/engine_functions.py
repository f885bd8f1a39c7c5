"""What tests of the engine send to worker processes."""

import os
import signal
import time

from foundation.errors import UserError


def slow(seconds: str) -> str:
    """Waits; says how long, and in which process."""
    time.sleep(float(seconds))
    return f"{seconds} {os.getpid()}"


def refuse(item: str) -> str:
    """What a user can mend, for one item."""
    if item == "3":
        raise UserError(f"item {item} is refused")
    return item


def fail(item: str) -> str:
    """A fault of the program, for one item."""
    if item == "3":
        raise ValueError(f"item {item} has a fault")
    return item


def die(item: str) -> str:
    """The end of the worker process, for one item."""
    if item == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return item


class Counter:
    """Remembers within a process how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: str) -> str:
        self.calls += 1
        return f"{os.getpid()} {self.calls}"
