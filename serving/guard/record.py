"""What is remembered of one request, for its line in the access log and for the metrics."""

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

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
    first_seconds: float | None = None  # to the first byte of the answer's body
    last_seconds: float | None = None
    seconds: float = 0.0
    client_gone: bool = False
    prompt: Any = None

    def line(self) -> str:
        """The record as JSON, one line; no text of the prompt unless `prompt` was set."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        fields["path"] = self.path[:_LONGEST_PATH]
        rounded = {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in fields.items()}
        return json.dumps(rounded)


class AccessLog:
    """Lines of JSON on a stream. A disk that is full costs log lines, never an answer."""

    def __init__(self, path: Path | None) -> None:
        """Append to `path`, or write to standard output where it is None."""
        self._path = path
        self._stream: TextIO = sys.stdout
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("a", encoding="utf-8", buffering=1)
        self._broken = False

    def write(self, record: Record) -> None:
        """Write one line."""
        try:
            print(record.line(), file=self._stream, flush=True)
            self._broken = False
        except (OSError, ValueError) as error:
            if not self._broken:
                _LOG.error("the access log cannot be written: %s", error)
            self._broken = True

    def close(self) -> None:
        """Close the file, if it is ours."""
        if self._path is not None:
            self._stream.close()
