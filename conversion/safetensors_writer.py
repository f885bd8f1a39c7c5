"""A safetensors file written tensor by tensor, its header first: memory is one tensor, never the model.

Format: 8 bytes little-endian header size, a JSON header padded with spaces, then the tensors' bytes
without a hole (https://github.com/huggingface/safetensors#format).
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorEntry:
    """What a tensor of the file will be."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsWriter:
    """Write the named tensors in any order; leaving the `with` block flushes them to the disk.

    Raises ValueError for a tensor that is not as announced, or that was never written.
    """

    def __init__(self, path: Path, entries: Mapping[str, TensorEntry]) -> None:
        self._entries = dict(entries)
        self._missing = set(entries)
        self._offsets: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        # Wide numbers first, so that every tensor starts at a multiple of its number's width.
        for name in sorted(entries, key=lambda name: -entries[name].dtype.itemsize):
            entry = entries[name]
            start, end = end, end + entry.size
            dtype_name = _DTYPE_NAMES[entry.dtype]
            header[name] = {"dtype": dtype_name, "shape": list(entry.shape), "data_offsets": [start, end]}
            self._offsets[name] = start
        text = json.dumps(header, separators=(",", ":")).encode("utf-8")
        text += b" " * (-len(text) % _HEADER_ALIGNMENT)
        self._start = 8 + len(text)
        self._handle = path.open("wb")
        self._handle.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write tensor `name`, once."""
        entry = self._entries[name]
        if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, announced as {entry}")
        self._missing.remove(name)
        self._handle.seek(self._start + self._offsets[name])
        self._handle.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> "SafetensorsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._handle:
            if error is None:
                if self._missing:
                    raise ValueError(f"never written: {', '.join(sorted(self._missing))}")
                self._handle.flush()
                os.fsync(self._handle.fileno())
