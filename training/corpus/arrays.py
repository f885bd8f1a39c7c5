"""NumPy's own files, whole or absent."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from foundation.files import write_bytes


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write `array` as a .npy file."""
    sink = io.BytesIO()
    np.save(sink, array)
    write_bytes(path, sink.getvalue())
