"""fastText's training, in a process of its own whose memory begins as zeros.

On one thread fastText 0.9.2 fills the first tenth of its input matrix with random numbers and leaves the rest as memory
comes: zeros at best, else what other work left there, which makes every model another one and some of them NaN. More
threads fill more of it, but then the result depends on how they meet. So the C library is told to clear what it hands
out, which would slow down everything else.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from training.corpus.quality.classifier import fasttext
from training.corpus.quality.config import ClassifierConfig

_ROOT = Path(__file__).resolve().parents[3]
# mallopt's number for "memory handed out is filled with the complement of this byte".
_M_PERTURB, _ALL_ONES = -6, 255


def fit(lines: Path, model: Path, config: ClassifierConfig, epochs: int, seed: int) -> None:
    """Train on `lines` ("__label__good words ...") and write `model`, whose bytes they and the settings decide.

    Raises UserError when fastText gives up.
    """
    options = {
        "input": str(lines),
        "wordNgrams": config.word_ngrams,
        "dim": config.dimension,
        "bucket": config.buckets,
        "minCount": config.min_count,
        "epoch": epochs,
        "lr": config.learning_rate,
        "seed": seed % 2**31,  # an int of C
        "thread": 1,
        "verbose": 0,
    }
    paths = [str(_ROOT), *sys.path, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "training.corpus.quality.fit", json.dumps({"model": str(model), "options": options})],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise UserError(
            f"fastText could not be trained: {reason}; quality.training has its settings (a learning_rate too high "
            "gives NaN)"
        )


def _serve(request: dict[str, Any]) -> None:
    clear = getattr(ctypes.CDLL(None), "mallopt", None)
    if clear is not None:  # of glibc; others hand out large blocks fresh, as zeros
        clear(_M_PERTURB, _ALL_ONES)
    fasttext().train_supervised(**request["options"]).save_model(request["model"])


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
