"""Whether the model and dataset hub answers, asked once and briefly."""

import functools
import os
import socket
from urllib.parse import urlsplit

_PROBE_SECONDS = 3.0


@functools.cache
def hub_reachable() -> bool:
    """True when the Hugging Face hub (or `$HF_ENDPOINT`) accepts a connection within 3 s.

    Libraries retry an unreachable hub for minutes; asking first keeps a machine without one fast.
    """
    if os.environ.get("HF_HUB_OFFLINE", "") in {"1", "true", "TRUE", "ON", "YES"}:
        return False
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False
