"""Tensors where they lie in files, without opening, unpickling or building anything: a file, an offset, a shape."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from conversion.placement import Placement
from foundation.errors import UserError


@dataclass(frozen=True)
class Extent:
    """`count` elements of a flattened slice, from its element `start`, which lie at byte `offset` of `file`."""

    file: Path
    offset: int
    start: int
    count: int


@dataclass(frozen=True)
class StoredSlice:
    """One rank's slice of a tensor on the disk.

    `shape` is the shape as stored, row-major; `transposed` says that it is [in, out] where the table of tensors has
    [out, in]. `placement` is in the table's orientation. One extent, or several where ZeRO partitioned the slice; none
    in a plan that is drawn before the checkpoint exists.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    placement: Placement
    extents: tuple[Extent, ...]
    transposed: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @contextmanager
    def open(self) -> Iterator[torch.Tensor]:
        """The slice in the table's orientation while the block lasts; mapped from its file, not read, where it can be.

        Raises UserError naming the file when it is missing or too short, or when extents leave a hole.
        """
        with _mapped(self.extents, self.dtype) as parts:
            flat = parts[0] if len(parts) == 1 else self._joined(parts)
            if flat.numel() != torch.Size(self.shape).numel():
                names = ", ".join(sorted({extent.file.name for extent in self.extents}))
                raise UserError(f"{names}: {flat.numel()} elements where a tensor of shape {self.shape} should be")
            tensor = flat.view(self.shape)
            yield tensor.t() if self.transposed else tensor

    def read(self, rows: slice, room: torch.Tensor) -> torch.Tensor:
        """These rows of the slice as stored, read into `room`, a flat tensor of bytes; the same errors as `open`.

        Read, not mapped: memory that is used again costs no new pages.
        """
        width = torch.Size(self.shape[1:]).numel()
        first, count = rows.start * width, (rows.stop - rows.start) * width
        flat = room[: count * self.dtype.itemsize].view(self.dtype)
        end = first
        for extent in sorted(self.extents, key=lambda extent: extent.start):
            begin, stop = max(first, extent.start), min(first + count, extent.start + extent.count)
            if begin < stop:
                if begin != end:
                    raise UserError(f"{extent.file}: its part starts at element {extent.start} instead of {end}")
                place = flat[begin - first : stop - first].view(torch.uint8).numpy()
                _read(extent.file, extent.offset + (begin - extent.start) * self.dtype.itemsize, place.data)
                end = stop
        if end != first + count:
            names = ", ".join(sorted({extent.file.name for extent in self.extents}))
            raise UserError(f"{names}: {end} elements where a tensor of shape {self.shape} should be")
        return flat.view(rows.stop - rows.start, *self.shape[1:])

    def _joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        order = sorted(range(len(parts)), key=lambda number: self.extents[number].start)
        end = 0
        for number in order:
            if self.extents[number].start != end:
                file = self.extents[number].file
                raise UserError(f"{file}: its part starts at element {self.extents[number].start} instead of {end}")
            end += self.extents[number].count
        return torch.cat([parts[number] for number in order])


def _read(file: Path, offset: int, room: memoryview) -> None:
    """Fill `room` from byte `offset` of `file`."""
    try:
        with file.open("rb", buffering=0) as handle:
            while room:
                count = os.preadv(handle.fileno(), [room[: 1 << 30]], offset)
                if count == 0:
                    raise UserError(f"{file} is cut short: a tensor in it ends {len(room)} bytes beyond its end")
                room, offset = room[count:], offset + count
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


@contextmanager
def _mapped(extents: tuple[Extent, ...], dtype: torch.dtype) -> Iterator[list[torch.Tensor]]:
    """Flat tensors over private mappings of the extents; their pages are given back when the block ends."""
    maps: list[mmap.mmap] = []
    tensors: list[torch.Tensor] = []
    try:
        for extent in extents:
            size = extent.count * dtype.itemsize
            if size == 0:
                tensors.append(torch.empty(0, dtype=dtype))
                continue
            begin = extent.offset - extent.offset % mmap.ALLOCATIONGRANULARITY
            try:
                with extent.file.open("rb") as handle:
                    held = handle.seek(0, 2)
                    if held < extent.offset + size:
                        raise UserError(
                            f"{extent.file} is cut short: it has {held} bytes, but a tensor in it ends at byte "
                            f"{extent.offset + size}"
                        )
                    length = extent.offset + size - begin
                    # Private, since torch wants memory that it may write to; nothing is ever written.
                    mapped = mmap.mmap(handle.fileno(), length, access=mmap.ACCESS_COPY, offset=begin)
            except OSError as error:
                raise UserError(f"{extent.file} cannot be read: {error.strerror}") from None
            maps.append(mapped)
            tensors.append(_view(mapped, extent.offset - begin, extent.count, dtype))
        yield tensors
    finally:
        tensors.clear()
        for mapped in maps:
            _close(mapped)


def _view(mapped: mmap.mmap, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    if offset % dtype.itemsize == 0:
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
    # safetensors aligns nothing; torch wants its elements aligned.
    return torch.frombuffer(mapped, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset).clone().view(dtype)


def _close(mapped: mmap.mmap) -> None:
    try:
        mapped.close()
    except BufferError:
        # Somebody still holds a view (a tensor in flight): the mapping goes when that goes.
        mapped.madvise(mmap.MADV_DONTNEED)
