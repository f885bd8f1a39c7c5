"""The safetensors format, header only: what a file will hold before it is written, what it holds before it is read.

8 bytes little-endian header size, a JSON header padded with spaces, then the tensors' bytes without a hole
(https://github.com/huggingface/safetensors#format).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from foundation.errors import UserError

_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F64": torch.float64,
    # Of causal masks, in folders of older transformers.
    "BOOL": torch.bool,
    "U8": torch.uint8,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGNMENT = 8
# As in the safetensors library.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: what it is, and the byte of the file where it starts."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def count(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * self.dtype.itemsize


def layout(
    tensors: Sequence[tuple[str, tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]
) -> tuple[bytes, list[Entry]]:
    """The header of a file with these tensors, and where each will be, in the order of the file.

    Wide numbers come first, so that every tensor starts at a multiple of its number's width.
    """
    ordered = sorted(tensors, key=lambda tensor: -tensor[2].itemsize)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key, shape, dtype in ordered:
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    position, entries = 8 + len(text), []
    for key, shape, dtype in ordered:
        entries.append(Entry(key, shape, dtype, position))
        position += entries[-1].size
    return len(text).to_bytes(8, "little") + text, entries


class SafetensorsFile:
    """A file as the writer wants it: the header, then the tensors one behind the other, without a checksum."""

    def __init__(
        self, tensors: Sequence[tuple[str, tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]
    ) -> None:
        self._header, found = layout(tensors, metadata)
        self.entries: Sequence[Entry] = found

    def checksum(self, data: memoryview) -> int:
        """The format has none."""
        return 0

    def between(self, checksums: Sequence[int]) -> bytes:
        """The header ahead of the first tensor, nothing after that."""
        return b"" if checksums else self._header


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and entries of the file at `path`, by key.

    Raises UserError when it is no safetensors file, is cut short, or holds another kind of number.
    """
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length <= min(_MAX_HEADER, size - 8):
                raise UserError(f"{path} cannot be read: it is not a safetensors file, or was cut short")
            header = json.loads(handle.read(length))
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        entries = {key: _entry(path, key, described, 8 + length) for key, described in header.items()}
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} cannot be read: its safetensors header is damaged") from None
    end = max((entry.offset + entry.size for entry in entries.values()), default=8 + length)
    if size < end:
        raise UserError(f"{path} is cut short: {size} bytes where its header promises {end}")
    return metadata, entries


def _entry(path: Path, key: str, described: Any, start: int) -> Entry:
    if described["dtype"] not in _DTYPES:
        raise UserError(f"{path}: tensor {key} holds {described['dtype']}; known: {', '.join(_DTYPES)}")
    first, last = (int(offset) for offset in described["data_offsets"])
    entry = Entry(key, tuple(int(size) for size in described["shape"]), _DTYPES[described["dtype"]], start + first)
    if first < 0 or last - first != entry.size:
        raise ValueError(key)
    return entry
