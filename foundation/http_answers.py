"""What an HTTP server that refuses says: how long to wait, and why."""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def retry_seconds(header: str | None) -> float | None:
    """Seconds of a Retry-After, which holds seconds or a date (RFC 9110, 10.2.3); None without a readable one."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def error_text(body: bytes, text: str) -> tuple[str, bool]:
    """What an error says, in whichever of the usual places, on one line; and whether it was JSON that says it.

    `text` is the body decoded, which stands where it is no JSON.
    """
    try:
        said = json.loads(body)
    except ValueError:
        return " ".join(text.split()), False
    for place in ("error", "message", "detail"):
        if isinstance(said, dict) and place in said:
            said = said[place]
    return " ".join(str(said).split()), bool(said)
