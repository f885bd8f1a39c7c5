"""What is remembered of one request, for its line in the access log and for the metrics."""

import errno
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from foundation.errors import UserError

_LOG = logging.getLogger("mtnlg.guard")
_LONGEST_PATH = 200
_DIGITS = 6


@dataclass
class Record:
    """One request. Times are seconds: `arrived` since the epoch, the others since then; None is not known."""

    id: str
    arrived: float
    method: str
    path: str
    route: str
    key: str = "-"
    model: str | None = None
    status: int = 0
    reason: str | None = None  # why it was refused, or broken off
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    choices: int | None = None
    completion_tokens: int | None = None
    stream: bool = False
    body_bytes: int = 0
    queue_seconds: float | None = None
    admitted_seconds: float | None = None  # to the end of its time in the queue
    first_seconds: float | None = None  # to the first byte of the answer's body
    last_seconds: float | None = None
    seconds: float = 0.0
    client_gone: bool = False
    trace_id: str | None = None  # OpenTelemetry's, where traces are made
    prompt: Any = None

    def line(self) -> str:
        """The record as JSON, one line; no text of the prompt unless `prompt` was set."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        fields["path"] = self.path[:_LONGEST_PATH]
        rounded = {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in fields.items()}
        return json.dumps(rounded)


class AccessLog:
    """Lines of JSON, one a request. A disk that is full costs log lines, never an answer."""

    def __init__(self, path: Path | None) -> None:
        """Append to `path`, or to standard output where it is None. Raises UserError for a path that cannot be."""
        self._file: BinaryIO | None = None
        self._lost = 0
        self._torn = False
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk has not taken must not come out later, in the middle of another line.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write the access log {path}: {error.strerror}") from None

    def write(self, record: Record) -> None:
        """Write one line."""
        try:
            self._put(record.line())
        except (OSError, ValueError) as error:
            if self._lost == 0:
                _LOG.error("the access log cannot be written: %s", error)
            self._lost += 1
            return
        if self._lost:
            _LOG.warning("the access log is written again; %d lines are lost", self._lost)
            self._lost = 0

    def close(self) -> None:
        """Close the file, if it is ours."""
        if self._file is not None:
            self._file.close()

    def _put(self, line: str) -> None:
        if self._file is None:
            print(line, flush=True)
            return
        content = b"\n" * self._torn + line.encode() + b"\n"
        written = self._file.write(content)
        self._torn = written < len(content) and (written > 0 or self._torn)
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
