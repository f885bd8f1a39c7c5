"""Carrying out a plan: a tensor at a time, hashed while it is written, and resumed file by file."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, MutableSequence, Sequence
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

# Outputs of fewer bytes get memory of their own; so many tasks (three a tensor) may wait for the threads.
_SMALL = 2**20
_MOST_PENDING = 192


class Container(Protocol):
    """A file format as a sequence that is written from its beginning to its end: bytes, a tensor, ..., bytes."""

    entries: Sequence[Entry]  # the tensors in the order of the file
    checksummed: bool  # whether `between` needs the tensors' checksums, or only how many there are

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
                room.keep(writer.write(entry, make(plan, by_key[entry.key], cast, room)))
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

    There are two rooms for large outputs in turn, since one is written while the next is made, and one for an input.
    Small outputs get memory of their own, so that a bias does not wait for the matrix before it to be written.
    """

    def __init__(self) -> None:
        self._outputs = [torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)]
        self._uses: list[list[Future[None]]] = [[], []]
        self._latest: list[Future[None]] = []
        self._input = torch.empty(0, dtype=torch.uint8)

    def output(self, size: int) -> torch.Tensor:
        """Room for an output, to be written and kept (`keep`) before the next is asked for."""
        if size < _SMALL:
            self._latest = []
            return torch.empty(size, dtype=torch.uint8)
        oldest = self._outputs.pop(0)
        _settle(self._uses.pop(0))
        if oldest.numel() < size:
            # Freed first, so that the two are never three.
            oldest = torch.empty(0, dtype=torch.uint8)
            oldest = torch.empty(size, dtype=torch.uint8)
        self._outputs.append(oldest)
        self._latest = []
        self._uses.append(self._latest)
        return oldest[:size]

    def keep(self, uses: Sequence[Future[None]]) -> None:
        """Do not give the latest output's room away before `uses` are done."""
        self._latest.extend(uses)

    def input(self, size: int) -> torch.Tensor:
        """Room for an input, until the next is asked for."""
        if self._input.numel() < size:
            self._input = torch.empty(0, dtype=torch.uint8)
            self._input = torch.empty(size, dtype=torch.uint8)
        return self._input[:size]


class _FileWriter:
    """Writes one file: the caller makes tensors while three threads hash and write those before."""

    def __init__(self, path: Path, container: Container) -> None:
        self._container = container
        self._checksums: list[int] = []
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._digest = hashlib.sha256()
        self._size = 0
        # One thread a job, so that each does the tensors in the order of the file.
        self._threads = [ThreadPoolExecutor(1) for _ in range(3)]
        self._pending: deque[Future[None]] = deque()
        self._tensors: dict[str, str] = {}

    def write(self, entry: Entry, tensor: torch.Tensor) -> list[Future[None]]:
        """Begin to write `tensor` at the place of `entry`, the next in the file; it may not change until all is done.

        Raises what went wrong with a tensor before.
        """
        self._write_between()
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        self._checksums.append(0)
        # hashlib and pwrite let the other threads run.
        hashing, checking, writing = self._threads
        begun = [
            hashing.submit(self._digest.update, data),
            checking.submit(self._hash, entry, data, len(self._checksums) - 1),
            writing.submit(_write_all, self._descriptor, data, entry.offset),
        ]
        self._size += len(data)
        self._pending.extend(begun)
        while len(self._pending) > _MOST_PENDING or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()
        return begun

    def end(self) -> None:
        """Write what stands behind the last tensor; no tensor's memory is needed any more."""
        self._write_between()
        _settle(self._pending)

    def flush(self) -> tuple[FileRecord, dict[str, str]]:
        """Wait for everything to be on the disk; the file's record, and the SHA-256 of each tensor."""
        os.fsync(self._descriptor)
        return FileRecord(size=self._size, sha256=self._digest.hexdigest()), self._tensors

    def close(self) -> None:
        """End the threads and close the file."""
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
        os.close(self._descriptor)

    def _write_between(self) -> None:
        if self._container.checksummed:
            _settle(self._pending)
        content = self._container.between(self._checksums)
        _write_all(self._descriptor, memoryview(content), self._size)
        self._pending.append(self._threads[0].submit(self._digest.update, content))
        self._size += len(content)

    def _hash(self, entry: Entry, data: memoryview, number: int) -> None:
        self._tensors[entry.key] = hashlib.sha256(data).hexdigest()
        self._checksums[number] = self._container.checksum(data)


def _settle(pending: MutableSequence[Future[None]]) -> None:
    """Wait for all, and forget them. Raises what went wrong."""
    futures = list(pending)
    pending.clear()
    for future in futures:
        future.result()


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data[: 1 << 30], offset)
        data, offset = data[count:], offset + count
