"""Samples out of token indexes, in an order that depends on the seed alone.

A sample is `sequence_length + 1` consecutive tokens; its number is its place in the run, so that the
position in the data is one integer (consumed samples) and every layout sees the same global batches.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from foundation.errors import UserError
from training.data.megatron_index import indexed_dataset

Batch = tuple[torch.Tensor, torch.Tensor]
Tokens = npt.NDArray[np.int64]


class Samples(Protocol):
    """The run's samples by number: `sequence_length + 1` token ids each."""

    def __getitem__(self, number: int, /) -> Tokens:
        """Sample `number` of the run."""
        ...


class TooFewTokensError(UserError):
    """An index that holds less than one sample."""


class TokenStream:
    """The tokens of a Megatron .bin/.idx index as one stream, read through memory mapping."""

    def __init__(self, prefix: Path, sequence_length: int) -> None:
        if not (prefix.with_name(f"{prefix.name}.idx").is_file() and prefix.with_name(f"{prefix.name}.bin").is_file()):
            raise UserError(f"no token index at {prefix}.bin and {prefix}.idx; make one with: mtnlg data prepare")
        if prefix.with_name(f"{prefix.name}.bin").stat().st_size == 0:
            # An empty file cannot be mapped.
            raise TooFewTokensError(f"{prefix} holds no tokens")
        self._index = indexed_dataset().IndexedDataset(str(prefix), mmap=True)
        self._sequence_length = sequence_length
        tokens = int(self._index.sequence_lengths.sum())
        self.num_samples = (tokens - 1) // sequence_length
        if self.num_samples < 1:
            raise TooFewTokensError(f"{prefix} holds {tokens} tokens, less than one sample of {sequence_length} + 1")

    def __getitem__(self, number: int) -> Tokens:
        """Sample `number` of the stream."""
        dtype = self._index.index.dtype
        start = number * self._sequence_length * np.dtype(dtype).itemsize
        tokens = self._index.bin_reader.read(dtype=dtype, count=self._sequence_length + 1, offset=start)
        return tokens.astype(np.int64)  # type: ignore[no-any-return]


class ShuffledStream:
    """A stream without end: every epoch is another permutation of its samples."""

    def __init__(self, stream: TokenStream, seed: int) -> None:
        self._stream = stream
        self._seed = seed
        self._epoch = -1
        self._permutation: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __getitem__(self, number: int) -> Tokens:
        """Sample `number`, counted over the epochs."""
        return self._stream[self.place(number)]

    def place(self, number: int) -> int:
        """Which sample of the stream is the n-th."""
        epoch, position = divmod(number, self._stream.num_samples)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._permutation = generator.permutation(self._stream.num_samples)
            self._epoch = epoch
        return int(self._permutation[position])


class SpreadSamples:
    """`count` samples spread evenly over several streams taken as one: for validation, always the same ones."""

    def __init__(self, streams: list[TokenStream], count: int) -> None:
        self._streams = streams
        self._count = count
        self._total = sum(stream.num_samples for stream in streams)

    def __getitem__(self, number: int) -> Tokens:
        """Sample `number` of `count`."""
        place = number * self._total // self._count
        for stream in self._streams:
            if place < stream.num_samples:
                return stream[place]
            place -= stream.num_samples
        raise IndexError(number)


def micro_batches(
    samples: Samples, *, start: int, micro_batch_size: int, replica: int, replicas: int
) -> Iterator[Batch]:
    """This replica's micro-batches from sample number `start` on: (inputs, targets), each [micro batch, sequence].

    Replicas take turns, so that a global batch is the same run of sample numbers in every layout.
    """
    first = start + replica * micro_batch_size
    while True:
        tokens = torch.from_numpy(np.stack([samples[number] for number in range(first, first + micro_batch_size)]))
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        first += replicas * micro_batch_size
