"""What a file of `torch.save` will hold, byte by byte, before any of its tensors is in memory.

The records are those that torch 2 writes: `data.pkl`, `byteorder`, a `data/N` for each tensor, starting at a multiple
of 64 bytes, and `version`. As in torch's files a record's CRC-32 stands behind its bytes and in the list of records at
the end, so that a file can be written from its beginning to its end. Structures: PKWARE's APPNOTE.TXT 6.3, section 4.3.
"""

import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2

from conversion.plan import OutputTensor
from conversion.safetensors_file import Entry

_FOLDER = "archive"
_ALIGNMENT = 64
_CRC_FOLLOWS = 0x0808  # the CRC-32 stands behind the record; names are UTF-8
_ZIP64 = 45  # the version of the format that has 64-bit sizes
_UNKNOWN_32 = 0xFFFFFFFF  # "see the 64-bit field"
_STORAGES = {
    torch.float32: torch.FloatStorage,
    torch.bfloat16: torch.BFloat16Storage,
    torch.float16: torch.HalfStorage,
}


@dataclass(frozen=True)
class _Record:
    name: str
    start: int  # of its header
    offset: int  # of its bytes
    size: int


class TorchZip:
    """A file that `torch.load` reads as `tree`, in which OutputTensors are tensors.

    It is written as a sequence: `between([])`, the first tensor, `between` of its CRC-32, the second tensor, and so on.
    `entries` are the tensors in this order and where each starts.
    """

    def __init__(self, tree: Mapping[str, Any], tensors: Sequence[OutputTensor]) -> None:
        self._before = {"data.pkl": _pickle(tree, tensors), "byteorder": b"little"}
        self._after = {"version": b"3\n"}
        sizes = {name: len(content) for name, content in self._before.items()}
        sizes |= {f"data/{number}": tensor.size for number, tensor in enumerate(tensors)}
        sizes |= {name: len(content) for name, content in self._after.items()}
        self._records: list[_Record] = []
        for name, size in sizes.items():
            start = _end(self._records[-1]) if self._records else 0
            plain = start + len(_header(name, 0))
            self._records.append(_Record(name, start, plain + -plain % _ALIGNMENT, size))
        records = self._records[len(self._before) :]
        self.entries: Sequence[Entry] = [
            Entry(tensor.key, tensor.shape, tensor.dtype, record.offset)
            for tensor, record in zip(tensors, records, strict=False)
        ]

    def checksum(self, data: memoryview) -> int:
        """CRC-32 of a tensor's bytes."""
        return zlib.crc32(data)

    def between(self, checksums: Sequence[int]) -> bytes:
        """What stands behind the tensors that have these CRC-32s: ahead of the next tensor, or to the file's end."""
        before, tensors = self._records[: len(self._before)], self._records[len(self._before) : -len(self._after)]
        done = len(checksums)
        parts = [_descriptor(tensors[done - 1], checksums[-1])] if done else self._small(before, self._before)
        if done < len(tensors):
            return b"".join([*parts, _start(tensors[done])])
        parts += self._small(self._records[-len(self._after) :], self._after)
        crcs = [*map(zlib.crc32, self._before.values()), *checksums, *map(zlib.crc32, self._after.values())]
        return b"".join([*parts, _list_of_records(self._records, crcs)])

    @staticmethod
    def _small(records: Sequence[_Record], contents: Mapping[str, bytes]) -> list[bytes]:
        """Records whose bytes are known, with what is around them."""
        parts = []
        for record, content in zip(records, contents.values(), strict=True):
            parts += [_start(record), content, _descriptor(record, zlib.crc32(content))]
        return parts


class _Storage:
    """Stands for record `data/N` in the pickle."""

    def __init__(self, number: int, tensor: OutputTensor) -> None:
        count = torch.Size(tensor.shape).numel()
        self.identity = ("storage", _STORAGES[tensor.dtype], str(number), "cpu", count)


class _Pickler(pickle.Pickler):
    """Pickles OutputTensors as torch pickles tensors."""

    def __init__(self, stream: BytesIO, tensors: Sequence[OutputTensor]) -> None:
        super().__init__(stream, protocol=2)
        self._storages = {id(tensor): _Storage(number, tensor) for number, tensor in enumerate(tensors)}

    def persistent_id(self, obj: Any) -> Any:
        """What `torch.load` finds a storage by."""
        return obj.identity if isinstance(obj, _Storage) else None

    def reducer_override(self, obj: Any) -> Any:
        """A tensor as the call that builds it from its storage: first element, shape, strides."""
        if not isinstance(obj, OutputTensor):
            return NotImplemented
        strides = tuple(accumulate(reversed(obj.shape[1:]), lambda left, right: left * right, initial=1))[::-1]
        storage = self._storages[id(obj)]
        return _rebuild_tensor_v2, (storage, 0, obj.shape, strides, False, OrderedDict())


def _pickle(tree: Mapping[str, Any], tensors: Sequence[OutputTensor]) -> bytes:
    stream = BytesIO()
    _Pickler(stream, tensors).dump(tree)
    return stream.getvalue()


def _header(name: str, padding: int) -> bytes:
    """A record's header; sizes and CRC-32 come behind its bytes. Padding is an extra field that nobody reads."""
    path = f"{_FOLDER}/{name}".encode()
    extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    return struct.pack("<4s5H3I2H", b"PK\x03\x04", _ZIP64, _CRC_FOLLOWS, 0, 0, 0, 0, 0, 0, len(path), len(extra)) + (
        path + extra
    )


def _start(record: _Record) -> bytes:
    return _header(record.name, record.offset - record.start - len(_header(record.name, 0)))


def _descriptor(record: _Record, crc: int) -> bytes:
    sizes = "2Q" if record.size >= _UNKNOWN_32 else "2I"
    return struct.pack(f"<4sI{sizes}", b"PK\x07\x08", crc, record.size, record.size)


def _end(record: _Record) -> int:
    return record.offset + record.size + len(_descriptor(record, 0))


def _list_of_records(records: Sequence[_Record], crcs: Sequence[int]) -> bytes:
    """The central directory and the two ends of it, that of 64 bits first."""
    content = b"".join(_listed(record, crc) for record, crc in zip(records, crcs, strict=True))
    start, count = _end(records[-1]), len(records)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, _ZIP64, _ZIP64, 0, 0, count, count, len(content), start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(content), 1)
    count16, size32, start32 = min(count, 0xFFFF), min(len(content), _UNKNOWN_32), min(start, _UNKNOWN_32)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, count16, count16, size32, start32, 0)
    return content + end64 + locator + end


def _listed(record: _Record, crc: int) -> bytes:
    path = f"{_FOLDER}/{record.name}".encode()
    wide = [record.size] * 2 if record.size >= _UNKNOWN_32 else []
    wide += [record.start] if record.start >= _UNKNOWN_32 else []
    extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    size, start = min(record.size, _UNKNOWN_32), min(record.start, _UNKNOWN_32)
    numbers = (_ZIP64, _ZIP64, _CRC_FOLLOWS, 0, 0, 0, crc, size, size, len(path), len(extra), 0, 0, 0, 0, start)
    return struct.pack("<4s6H3I5H2I", b"PK\x01\x02", *numbers) + path + extra
