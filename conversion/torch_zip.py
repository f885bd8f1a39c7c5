"""Reading what `torch.save` wrote since torch 1.6, without running anything in it and without reading a tensor.

Such a file is a zip archive, uncompressed: `data.pkl` is a pickle of the saved object, in which each tensor names a
record `data/N` that holds its bytes (https://docs.pytorch.org/docs/stable/notes/serialization.html). A pickle may call
any function that it names. Here it can call only the few that build containers and descriptions of tensors; classes
that checkpoints are known to hold become placeholders, and any other name is refused.
"""

import hashlib
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foundation.errors import UserError

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
# What training arguments, optimizers and random states are made of. Its classes become placeholders.
_PACKAGES = {
    "apex",
    "argparse",
    "collections",
    "datetime",
    "deepspeed",
    "enum",
    "megatron",
    "numpy",
    "pathlib",
    "torch",
}
_BUILTINS = {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "getattr", "int", "list", "object"}
_GLOBALS = {
    *(f"builtins.{name}" for name in (*_BUILTINS, "range", "set", "slice", "str", "tuple")),
    "_codecs.encode",
    "copyreg._reconstructor",
    "signal.Signals",
    "types.SimpleNamespace",
}
_LOCAL_HEADER = 30


class TorchTensor(NamedTuple):
    """A tensor in a file: its first element lies at byte `offset` of `file`; strides are in elements.

    A tuple, since a pickle may set the attributes of any other object, and so `file`.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    file: Path
    offset: int

    @property
    def elements(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after the other in the order of the shape."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return self.elements == 0
            expected *= size
        return True


class Placeholder:
    """An object of a class that is not loaded: what it would have been made of, and nothing that acts."""

    name = ""
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    state: Any
    items: list[Any]

    def __new__(cls, *args: Any, **keywords: Any) -> "Placeholder":
        """Keep the arguments; `state` and `items` come later, as in every pickle."""
        made = object.__new__(cls)
        made.args, made.keywords, made.state, made.items = args, keywords, None, []
        return made

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, item: Any) -> None:
        """Keep an element."""
        self.items.append(item)

    def extend(self, items: Any) -> None:
        """Keep elements."""
        self.items.extend(items)


def read_torch_file(path: Path) -> Any:
    """The object that was saved: containers as they were, TorchTensor for tensors, Placeholder for other objects.

    Raises UserError when the file is missing, cut short, damaged, of the format before torch 1.6, or names code.
    """
    with _open(path) as archive:
        return _Unpickler(archive, path).load_all()


def torch_file_fingerprint(path: Path) -> str:
    """SHA-256 of the pickle and of every record's name, size and CRC-32, which change with any byte of a tensor.

    Raises UserError as `read_torch_file`.
    """
    with _open(path) as archive:
        digest = hashlib.sha256()
        for record in archive.infolist():
            digest.update(f"{record.filename} {record.file_size} {record.CRC}\n".encode())
        digest.update(_read_record(archive, path, _pickle_record(archive, path)))
        return digest.hexdigest()


class _Storage(NamedTuple):
    dtype: torch.dtype
    offset: int
    size: int


class _Unpickler(pickle.Unpickler):
    """Unpickles `data.pkl`; resolves every name to a builder below or to a placeholder."""

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        record = _pickle_record(archive, path)
        self._content = _read_record(archive, path, record)
        super().__init__(BytesIO(self._content))
        self._archive, self._path = archive, path
        self._folder = record.removesuffix("data.pkl")
        self._file_size = path.stat().st_size
        self._storages: dict[str, tuple[int, int]] = {}
        self._builders: dict[str, Callable[..., Any]] = {
            "_rebuild_tensor": self._tensor,
            "_rebuild_tensor_v2": self._tensor,
            "_rebuild_tensor_v3": self._tensor_with_dtype,
            "_rebuild_parameter": self._parameter,
            "_rebuild_parameter_with_state": self._parameter,
        }

    def load_all(self) -> Any:
        """The saved object. Raises UserError."""
        try:
            self._check_sizes()
            return self.load()
        except UserError:
            raise
        except Exception:  # A damaged pickle fails in every way there is.
            raise UserError(f"{self._path} cannot be read: its data.pkl is damaged; copy the file again") from None

    def _check_sizes(self) -> None:
        """Raise ValueError when a damaged size or index would have the unpickler take memory beyond all measure."""
        for opcode, argument, position in pickletools.genops(self._content):
            if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > (position or 0):
                raise ValueError(position)

    def find_class(self, module: str, name: str) -> Any:
        """What stands in for `module.name`. Raises UserError when it is nothing known."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in self._builders:
            return self._builders[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and isinstance(found := vars(torch).get(name), torch.dtype):
            return found
        modern = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        full = f"{modern}.{name}"
        if full in _GLOBALS or module.split(".")[0] in _PACKAGES:
            return type("Placeholder", (Placeholder,), {"name": full})
        raise UserError(f"{self._path} names {full}, which no checkpoint needs; nothing was executed, do not trust it")

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage that a tensor names: ("storage", class, key, device, elements)."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise ValueError(pid)
        offset, size = self._locate(str(key))
        if int(count) * dtype.itemsize > size:
            raise UserError(f"{self._path}: record data/{key} has {size} bytes where {count} elements should be")
        return _Storage(dtype, offset, size)

    def _locate(self, key: str) -> tuple[int, int]:
        if key not in self._storages:
            name = f"{self._folder}data/{key}"
            try:
                record = self._archive.getinfo(name)
            except KeyError:
                raise UserError(f"{self._path} is damaged: it has no record {name}; copy it again") from None
            if record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:
                raise UserError(
                    f"{self._path}: record {name} is compressed, which torch.save never does; save it again"
                )
            offset = _data_offset(self._path, record)
            if offset + record.file_size > self._file_size:
                raise UserError(f"{self._path} is damaged: record {name} ends behind the file's end; copy it again")
            self._storages[key] = offset, record.file_size
        return self._storages[key]

    def _tensor(self, storage: _Storage, first: int, shape: Any, strides: Any, *_: Any) -> TorchTensor:
        return self._described(storage, storage.dtype, first, shape, strides)

    def _tensor_with_dtype(
        self, storage: _Storage, first: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
    ) -> TorchTensor:
        return self._described(storage, dtype, first, shape, strides)

    def _parameter(self, tensor: TorchTensor, *_: Any) -> TorchTensor:
        return tensor

    def _described(self, storage: _Storage, dtype: torch.dtype, first: int, shape: Any, strides: Any) -> TorchTensor:
        sizes, steps = _integers(shape), _integers(strides)
        span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, steps, strict=True))
        if 0 not in sizes and (first + span) * dtype.itemsize > storage.size:
            raise UserError(f"{self._path} is damaged: a tensor of shape {sizes} ends behind its record; copy it again")
        return TorchTensor(sizes, steps, dtype, self._path, storage.offset + first * dtype.itemsize)


def _integers(sizes: Any) -> tuple[int, ...]:
    """A shape: a tuple, or torch.Size as a placeholder."""
    plain = sizes.args[0] if isinstance(sizes, Placeholder) else sizes
    checked = tuple(int(size) for size in plain)
    if any(size < 0 for size in checked):
        raise ValueError(checked)
    return checked


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        with path.open("rb") as handle:
            begin = handle.read(4)
    if begin.startswith(b"\x80"):
        raise UserError(f"{path} is of the format before torch 1.6; load it and torch.save it again with a newer torch")
    if begin == b"PK\x03\x04":
        raise UserError(f"{path} is cut short or damaged: its list of records, at the end, is not there; copy it again")
    raise UserError(f"{path} is not a file of torch.save, or its beginning is damaged")


def _pickle_record(archive: zipfile.ZipFile, path: Path) -> str:
    found = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise UserError(f"{path} is a zip archive, but not of torch.save: it has no data.pkl")
    order = found[0].removesuffix("data.pkl") + "byteorder"
    if order in archive.namelist() and _read_record(archive, path, order) != b"little":
        raise UserError(f"{path} was written on a big-endian machine; save it again on a little-endian one")
    return found[0]


def _read_record(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, OSError):
        raise UserError(f"{path} is damaged: its record {name} is not what its checksum says; copy it again") from None


def _data_offset(path: Path, record: zipfile.ZipInfo) -> int:
    """Where a record's bytes start: behind its own header, which may be padded otherwise than the list of records."""
    with path.open("rb") as handle:
        handle.seek(record.header_offset)
        header = handle.read(_LOCAL_HEADER)
    if len(header) != _LOCAL_HEADER or not header.startswith(b"PK\x03\x04"):
        raise UserError(f"{path} is damaged: record {record.filename} does not start where it should; copy it again")
    return (
        record.header_offset
        + _LOCAL_HEADER
        + int.from_bytes(header[26:28], "little")
        + int.from_bytes(header[28:30], "little")
    )
