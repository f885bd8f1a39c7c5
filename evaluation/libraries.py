"""Libraries that evaluation stands on, made quiet and kept off an unreachable network."""

import importlib.util
import logging
import os
import platform
from importlib.metadata import version
from typing import Any

from foundation.errors import UserError
from foundation.hub import hub_reachable

_DETERMINING = ("mtnlg", "lm-eval", "transformers", "torch")


def prepare_libraries(*, offline: bool) -> None:
    """Call once before lm-eval, datasets and transformers are imported; some read their settings only then.

    With `offline`, or when the Hub does not answer, they do not try it (their retries take minutes).
    Raises UserError when they are not installed.
    """
    missing = [name for name in ("lm_eval", "datasets", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"evaluation needs {', '.join(missing)}: pip install 'mtnlg[evaluate]'")
    if offline or not hub_reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"
    # Their progress bars would break the grid's.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # lm-eval warns that few-shot examples come from the training split, and of every settled default.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def describe_environment(backend: str) -> dict[str, Any]:
    """What this process computes with; of a server behind the backend `http` nothing is known here."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: version(name) for name in _DETERMINING},
        "device": "a server's" if backend == "http" else device,
        "threads": torch.get_num_threads(),
    }
