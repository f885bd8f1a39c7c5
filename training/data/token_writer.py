"""Megatron's .bin and .idx, written as documents come: tokens end to end, then each document's length and offset."""

import os
import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_UINT16_CODE, _INT32_CODE = 8, 4
_LARGEST_UINT16_VOCABULARY = 65_500


def token_dtype(vocab_size: int) -> Any:
    """The type that Megatron's tools choose for ids below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size < _LARGEST_UINT16_VOCABULARY else np.int32)


class TokenWriter:
    """Writes `prefix`.bin as documents come and `prefix`.idx at the end of a `with` block that raises nothing."""

    def __init__(self, prefix: Path, dtype: Any) -> None:
        self.documents = 0
        self.tokens = 0
        self._prefix = prefix
        self._dtype = np.dtype(dtype)
        self._lengths = array("i")

    def __enter__(self) -> "TokenWriter":
        self._file: BinaryIO = self._prefix.with_name(f"{self._prefix.name}.bin").open("wb")
        return self

    def add(self, documents: Sequence[npt.NDArray[Any]]) -> None:
        """Write documents' tokens, each with its separator."""
        for document in documents:
            self._file.write(document.astype(self._dtype).tobytes())
        self._count([len(document) for document in documents])

    def append(self, tokens: Path, lengths: npt.NDArray[np.int32]) -> None:
        """Copy a file of tokens of this type, which are documents of these lengths."""
        with tokens.open("rb") as file:
            shutil.copyfileobj(file, self._file, 1 << 22)
        self._count(lengths.tolist())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        if kind is None:
            lengths = np.array(self._lengths, dtype=np.int32)
            _write_index(self._prefix.with_name(f"{self._prefix.name}.idx"), self._dtype, lengths)

    def _count(self, lengths: Sequence[int]) -> None:
        self.documents += len(lengths)
        self.tokens += sum(lengths)
        self._lengths.extend(lengths)


def _write_index(path: Path, dtype: Any, lengths: npt.NDArray[np.int32]) -> None:
    """All numbers little-endian; one sequence a document, no modes."""
    sizes = lengths.astype("<i8") * dtype.itemsize
    code = _UINT16_CODE if dtype == np.uint16 else _INT32_CODE
    with path.open("wb") as file:
        file.write(_MAGIC + np.array([_VERSION], dtype="<u8").tobytes() + bytes([code]))
        file.write(np.array([len(lengths), len(lengths) + 1], dtype="<u8").tobytes())
        file.write(lengths.astype("<i4").tobytes())
        file.write((np.cumsum(sizes) - sizes).tobytes())
        file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
        file.flush()
        os.fsync(file.fileno())
