"""Carrying out a plan: a tensor at a time, hashed while it is written, and resumed file by file."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from conversion.cast import Cast
from conversion.journal import Written, add_to_journal, resume_journal
from conversion.placement import Copy, Placement
from conversion.plan import OutputFile, OutputTensor, Plan
from conversion.progress import Advance
from conversion.safetensors_file import Entry, SafetensorsFile
from conversion.source import check_replicas
from conversion.stored import StoredSlice
from conversion.torch_zip_layout import TorchZip
from foundation.errors import UserError
from foundation.manifest import FileRecord


class Container(Protocol):
    """A file format as a sequence that is written from its beginning to its end: bytes, a tensor, ..., bytes."""

    entries: Sequence[Entry]  # the tensors in the order of the file

    def checksum(self, data: memoryview) -> int:
        """The format's own checksum of a tensor's bytes; 0 where it has none."""

    def between(self, checksums: Sequence[int]) -> bytes:
        """The bytes behind the tensors with these checksums: ahead of the next one, or to the file's end."""


def write_files(plan: Plan, folder: Path, about: dict[str, Any], cast: Cast, progress: Advance) -> Written:
    """Write the plan's files into `folder`, leaving out those that an interrupted attempt at the same finished.

    `about` says what "the same" is. The journal of finished files lies in `folder` until `forget_journal`.
    """
    done, room = resume_journal(folder, about), Room()
    # A file is flushed to the disk, and only then put into the journal, while the next is written.
    with ThreadPoolExecutor(1) as flusher:
        flushed: Future[None] | None = None
        for file in plan.files:
            if file.name in done.files:
                progress(file.size, file.name)
                continue
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            writer = _write_file(plan, file, folder / file.name, cast, room, progress)
            if flushed is not None:
                flushed.result()
            flushed = flusher.submit(_finish_file, writer, folder, file.name, done)
        if flushed is not None:
            flushed.result()
    return done


def _write_file(plan: Plan, file: OutputFile, path: Path, cast: Cast, room: "Room", progress: Advance) -> "_FileWriter":
    container = _container(file)
    by_key = {tensor.key: tensor for tensor in file.tensors}
    with _reported(path):
        writer = _FileWriter(path, container)
        try:
            for entry in container.entries:
                writer.write(entry, make(plan, by_key[entry.key], cast, room))
                progress(entry.size, entry.key)
            writer.end()
        except BaseException:
            writer.close()
            raise
    return writer


def _finish_file(writer: "_FileWriter", folder: Path, name: str, done: Written) -> None:
    with _reported(folder / name):
        try:
            done.files[name], done.tensors[name] = writer.flush()
        finally:
            writer.close()
    add_to_journal(folder, name, done)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def _container(file: OutputFile) -> Container:
    if file.tree is not None:
        return TorchZip(file.tree, file.tensors)
    return SafetensorsFile([(tensor.key, tensor.shape, tensor.dtype) for tensor in file.tensors], file.metadata)


def make(plan: Plan, tensor: OutputTensor, cast: Cast, room: "Room") -> torch.Tensor:
    """The tensor as it will be stored, contiguous, in memory from `room`."""
    if tensor.spec is None or tensor.placement is None:
        return torch.full(tensor.shape, tensor.fill, dtype=tensor.dtype)
    inputs, copies = plan.inputs(tensor), plan.copies(tensor)
    if tensor.placement.rank == 0 and tensor.part is None:
        check_replicas(plan.source, tensor.spec, inputs)
    shape = tensor.slice_shape
    stored_shape = shape[::-1] if tensor.transposed else shape
    made = room.output(torch.Size(shape).numel() * tensor.dtype.itemsize).view(tensor.dtype).view(stored_shape)
    if len(copies) == 1 and _verbatim(tensor, tensor.placement, inputs[copies[0].source], copies[0]):
        along_rows = tensor.placement.dimension == 0
        first = copies[0].start if along_rows else 0
        inputs[copies[0].source].read(slice(first, first + made.shape[0]), made.flatten().view(torch.uint8))
    else:
        if sum(copy.length for copy in copies) < tensor.placement.rows:
            made.zero_()
        # Copied in the order of what is stored, whatever the orientation of source and target.
        _copy(tensor, inputs, copies, made.t() if tensor.transposed else made, cast, room)
    return made if tensor.part is None else made.flatten()[slice(*tensor.part)]


def _verbatim(tensor: OutputTensor, placement: Placement, source: StoredSlice, copy: Copy) -> bool:
    """Whether the stored bytes of one slice, or of consecutive rows of it, are the output's."""
    same = source.dtype == tensor.dtype and not source.transposed and not tensor.transposed
    return same and copy.length == placement.rows and (placement.dimension == 0 or copy.length == source.shape[1])


def _copy(
    tensor: OutputTensor,
    inputs: Sequence[StoredSlice],
    copies: Sequence[Copy],
    made: torch.Tensor,
    cast: Cast,
    room: "Room",
) -> None:
    """Carry out the copies, a source at a time; `made` is in the table's orientation."""
    if tensor.spec is None or tensor.placement is None:
        return
    dimension = tensor.placement.dimension
    for number in sorted({copy.source for copy in copies}):
        source = inputs[number]
        stored = source.read(slice(0, source.shape[0]), room.input(source.size))
        held = stored.t() if source.transposed else stored
        for copy in copies:
            if copy.source == number:
                before = held.narrow(dimension, copy.start, copy.length)
                after = made.narrow(dimension, copy.target, copy.length)
                after.copy_(before)
                cast.count_overflows(tensor.spec.name, before, after)


class Room:
    """Memory that is used again and again, in bytes: fresh pages cost more than the copying.

    There are two rooms for outputs in turn, since one is written while the next is made, and one for an input.
    """

    def __init__(self) -> None:
        self._outputs = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]
        self._input = torch.empty(0, dtype=torch.uint8)

    def output(self, size: int) -> torch.Tensor:
        """Room for an output, until the next but one is asked for."""
        oldest = self._outputs.pop(0)
        if oldest.numel() < size:
            # Freed first, so that the two are never three.
            oldest = torch.empty(0, dtype=torch.uint8)
            oldest = torch.empty(size, dtype=torch.uint8)
        self._outputs.append(oldest)
        return oldest[:size]

    def input(self, size: int) -> torch.Tensor:
        """Room for an input, until the next is asked for."""
        if self._input.numel() < size:
            self._input = torch.empty(0, dtype=torch.uint8)
            self._input = torch.empty(size, dtype=torch.uint8)
        return self._input[:size]


class _FileWriter:
    """Writes one file: the caller makes a tensor while three threads hash and write the one before."""

    def __init__(self, path: Path, container: Container) -> None:
        self._container = container
        self._checksums: list[int] = []
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._digest = hashlib.sha256()
        self._size = 0
        self._threads = ThreadPoolExecutor(3)
        self._pending: list[Future[None]] = []
        self._tensors: dict[str, str] = {}

    def write(self, entry: Entry, tensor: torch.Tensor) -> None:
        """Write `tensor` at the place of `entry`, which must be the next in the file; it may not change meanwhile."""
        self._settle()
        self._write_between()
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        # hashlib and pwrite let the other threads run.
        self._pending = [
            self._threads.submit(self._digest.update, data),
            self._threads.submit(self._hash, entry, data),
            self._threads.submit(_write_all, self._descriptor, data, entry.offset),
        ]
        self._size += len(data)

    def end(self) -> None:
        """Write what stands behind the last tensor; no tensor's memory is needed any more."""
        self._settle()
        self._write_between()

    def flush(self) -> tuple[FileRecord, dict[str, str]]:
        """Wait for everything to be on the disk; the file's record, and the SHA-256 of each tensor."""
        os.fsync(self._descriptor)
        return FileRecord(size=self._size, sha256=self._digest.hexdigest()), self._tensors

    def close(self) -> None:
        """End the threads and close the file."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self._descriptor)

    def _write_between(self) -> None:
        content = self._container.between(self._checksums)
        _write_all(self._descriptor, memoryview(content), self._size)
        self._digest.update(content)
        self._size += len(content)

    def _hash(self, entry: Entry, data: memoryview) -> None:
        self._tensors[entry.key] = hashlib.sha256(data).hexdigest()
        self._checksums.append(self._container.checksum(data))

    def _settle(self) -> None:
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data[: 1 << 30], offset)
        data, offset = data[count:], offset + count
