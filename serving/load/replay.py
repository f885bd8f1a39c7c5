"""An access log of `mtnlg serve` as requests to be sent again, at the same times."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from serving.load.calls import Call, Shape

_ROUTES = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True)
class Replay:
    """The requests, and how many lines of the log are not among them: other routes, or refused before being read.

    `made_up` are those whose text the log does not hold: they get another prompt of as many tokens, chats as well.
    """

    calls: list[Call]
    left_out: int
    made_up: int


def read_access_log(path: Path, speed: float = 1.0) -> Replay:
    """Requests of the log at `path`, `speed` times as fast. Raises UserError naming the line that cannot be read."""
    try:
        with path.open(encoding="utf-8") as lines:
            records = [_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise UserError(f"{path}: {reason}; --replay takes a file that `mtnlg serve --access-log` wrote") from None
    usable = sorted((record for record in records if record is not None), key=lambda record: record[0])
    if not usable:
        raise UserError(f"{path}: no line of it is a completion or a chat that was taken in")
    first = usable[0][0]
    calls = [
        Call(number, shape, (arrived - first) / speed, prompt, messages)
        for number, (arrived, shape, prompt, messages) in enumerate(usable)
    ]
    made_up = sum(call.prompt is None for call in calls)
    return Replay(calls, len(records) - len(calls), made_up)


def _record(line: str, where: str) -> tuple[float, Shape, Any, bool] | None:
    """Arrival, shape, prompt and whether that is a chat's; None for what cannot be sent again."""
    try:
        record = json.loads(line)
        arrived, route = float(record["arrived"]), record["route"]
        if route not in _ROUTES or record.get("prompt_tokens") is None:
            return None
        counts = record["prompt_tokens"], record["max_tokens"], record["choices"]
        stream, prompt = bool(record.get("stream")), record.get("prompt") or None
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__} {error}".strip()
        raise UserError(f"{where} is no line of an access log ({reason}): remove it, or name another file") from None
    if not all(type(count) is int and count > 0 for count in counts):
        raise UserError(
            f"{where}: prompt_tokens, max_tokens and choices must be whole numbers above 0, not {list(counts)}"
        )
    messages = route == _ROUTES[1] and prompt is not None
    return arrived, Shape(*counts, stream), prompt, messages
