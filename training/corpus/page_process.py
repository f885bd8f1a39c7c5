"""A function of untrusted bytes in a process of its own, which may hang or crash: then it is killed and replaced.

Parsers of HTML are C code: an endless loop or a wild pointer there is out of reach of Python's signals and exceptions.
"""

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError, one_line

# A frame is a kind (one letter) and its payload's length.
_HEAD = struct.Struct("<cQ")
_READY, _TEXT, _ERROR, _PAGE = b"R", b"T", b"E", b"P"
_START_SECONDS = 120.0
# What a page may take by the clock for each second that it may compute: machines are shared, and what is dropped
# must not depend on their load.
_WALL_SECONDS = 5.0
_START_AGAIN_AFTER = 10_000  # pages; libxml2 keeps every name that it ever met
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class PageResult:
    """The text, or the rule by which the page gave none, and what there is to say."""

    text: str
    rule: str | None = None
    detail: str = ""


class _EndedError(Exception):
    """The process is gone."""


class _TimedOutError(Exception):
    """The process did not answer in time."""


class PageProcess:
    """Calls `function` ("module:name", called with `options` to make the function of a page) in a process."""

    def __init__(self, function: str, options: Mapping[str, Any], *, seconds: float, memory_gigabytes: float) -> None:
        """`seconds` of processor time a page; `memory_gigabytes` (10^9 bytes) of address space for the process."""
        self._seconds = seconds
        self._settings = json.dumps(
            {"function": function, "options": dict(options), "seconds": seconds, "memory": int(memory_gigabytes * 1e9)}
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._pages = 0

    def extract(self, page: bytes) -> PageResult:
        """The function of one page. Raises UserError when the function cannot be loaded at all."""
        if self._process is None or self._pages >= _START_AGAIN_AFTER:
            self._start()
        process = self._running()
        self._pages += 1
        try:
            _send(process, page)
            kind, payload = _receive(process, time.monotonic() + _WALL_SECONDS * self._seconds)
        except (_EndedError, BrokenPipeError):
            return self._ended(process)
        except _TimedOutError:
            self.close()
            return PageResult("", "time limit", f"no answer within {_WALL_SECONDS * self._seconds:g} s")
        text = payload.decode("utf-8")
        return PageResult(text) if kind == _TEXT else PageResult("", "error", text)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        self.close()
        self._pages = 0
        # By path: what a project's folder, or a test's, added to the path is found in the process as well.
        paths = [str(_ROOT), *sys.path, os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "training.corpus.page_process", self._settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        try:
            kind, payload = _receive(self._process, time.monotonic() + _START_SECONDS)
        except (_EndedError, _TimedOutError):
            self.close()
            raise UserError(
                "the process that extracts text did not start: does extract.memory_gigabytes leave it enough?"
            ) from None
        if kind != _READY:
            self.close()
            raise UserError(f"cannot extract text: {payload.decode('utf-8')}")

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError("no process")
        return self._process

    def _ended(self, process: "subprocess.Popen[bytes]") -> PageResult:
        code = process.wait()
        self.close()
        if code == -signal.SIGPROF:
            return PageResult("", "time limit", f"more than {self._seconds:g} s of processor time")
        return PageResult("", "crash", signal.Signals(-code).name if code < 0 else f"exit status {code}")


def _send(process: "subprocess.Popen[bytes]", page: bytes) -> None:
    pipe = process.stdin
    assert pipe is not None  # noqa: S101 - for the type checker: it was asked for
    pipe.write(_HEAD.pack(_PAGE, len(page)))
    pipe.write(page)
    pipe.flush()


def _receive(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bytes]:
    kind, length = _HEAD.unpack(_read(process, _HEAD.size, deadline))
    return kind, _read(process, length, deadline)


def _read(process: "subprocess.Popen[bytes]", count: int, deadline: float) -> bytes:
    assert process.stdout is not None  # noqa: S101 - for the type checker: it was asked for
    descriptor = process.stdout.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    parts: list[bytes] = []
    while count:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _TimedOutError
        part = os.read(descriptor, min(count, 1 << 20))
        if not part:
            raise _EndedError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _serve(settings: dict[str, Any]) -> None:
    """The process: a page in, a reply out, until there are no more."""
    pages, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever a library prints must not get between the replies.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (settings["memory"], settings["memory"]))

    def reply(kind: bytes, text: str) -> None:
        payload = text.encode("utf-8", "replace")
        replies.write(_HEAD.pack(kind, len(payload)) + payload)
        replies.flush()

    try:
        module, _, name = settings["function"].partition(":")
        function = getattr(importlib.import_module(module), name)(**settings["options"])
    except (ImportError, AttributeError, ValueError) as error:
        reply(_ERROR, one_line(error))
        return
    reply(_READY, "")
    while head := pages.read(_HEAD.size):
        _, length = _HEAD.unpack(head)
        reply(*_answer(function, pages.read(length), settings["seconds"]))


def _answer(function: Callable[[bytes], str], page: bytes, seconds: float) -> tuple[bytes, str]:
    # By default the signal ends the process, wherever it is; nothing of Python's has to run.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return _TEXT, function(page)
    except Exception as error:  # a page may be anything
        return _ERROR, f"{type(error).__name__}: {one_line(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
