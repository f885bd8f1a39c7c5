"""Dropout whose masks depend on what they fall on, and on nothing else.

An element's fate is a hash of (seed, layer, site, sample's number in the run, position or head and query,
feature or key): counter-based random numbers, as Salmon et al. 2011. So every layout and micro-batch size
drops the same elements, a resumed run continues them, recomputation repeats them, and there is no generator
whose state would have to be kept apart on each rank.
"""

import hashlib
from dataclasses import dataclass

import torch

_RANGE = 1 << 32


class SampleClock:
    """Which samples of the run the micro-batch in hand holds, known without being told on every pipeline stage.

    DeepSpeed hands later stages nothing but activations, but every stage runs a step's micro-batches in the
    same order: counting them is enough. Numbers are those of `training.data.samples.micro_batches`.
    """

    def __init__(self, micro_batch_size: int = 1, replica: int = 0, replicas: int = 1) -> None:
        self._offset = replica * micro_batch_size
        self._stride = replicas * micro_batch_size
        self._next = self._offset
        self.first_sample = self._offset

    def start_step(self, first_sample: int) -> None:
        """The next micro-batch is a step's first; that step's samples, over all replicas, begin at `first_sample`."""
        self._next = first_sample + self._offset

    def next_micro_batch(self) -> None:
        """The step's next micro-batch is in hand."""
        self.first_sample = self._next
        self._next += self._stride


@dataclass(frozen=True)
class Dropout:
    """Dropout at one place in the model: each element is zero with probability `rate`, the others grow to match."""

    rate: float
    key: int

    @classmethod
    def at(cls, rate: float, seed: int, layer: int, site: str) -> "Dropout":
        """The dropout of a site, such as "attention", of pipeline layer number `layer`."""
        digest = hashlib.blake2b(f"{seed}/dropout/{layer}/{site}".encode(), digest_size=8).digest()
        return cls(rate, int.from_bytes(digest, "big", signed=True))

    def __call__(self, inputs: torch.Tensor, samples: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Drop elements of [..., width]; `samples` and `rows`, int64, broadcast to [...].

        `samples` are numbers in the run; `rows` number the rows of one sample at this site, whatever is held here.
        """
        dropped = dropped_elements(self.key, samples, rows, inputs.shape[-1], self.rate)
        return (inputs * (1.0 / (1.0 - self.rate))).masked_fill(dropped, 0.0)


def dropped_elements(key: int, samples: torch.Tensor, rows: torch.Tensor, width: int, rate: float) -> torch.Tensor:
    """Which elements of [..., width] are dropped.

    A row gets a key of its own from 64-bit arithmetic, which costs little; only the last hash is per element, and
    in 32 bits, since that is where the time goes.
    """
    row_keys = _mix64(_mix64(samples + key) + rows).to(torch.int32)
    columns = torch.arange(width, dtype=torch.int32, device=rows.device) * _signed32(0x9E3779B9)
    bits = _mix32(row_keys.unsqueeze(-1) ^ columns)
    return bits < min(round(rate * _RANGE), _RANGE - 1) - _RANGE // 2


def _mix64(values: torch.Tensor) -> torch.Tensor:
    # The finaliser of splitmix64 (Steele et al. 2014, figure 16), modulo 2^64 as int64 arithmetic is.
    values = (values ^ _shift_right(values, 30, 64)) * _signed64(0xBF58476D1CE4E5B9)
    values = (values ^ _shift_right(values, 27, 64)) * _signed64(0x94D049BB133111EB)
    return values ^ _shift_right(values, 31, 64)


def _mix32(values: torch.Tensor) -> torch.Tensor:
    # "lowbias32" of Wellons' hash prospector, in place, without its last shift: that leaves the high bits alone,
    # which a comparison reads.
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        values ^= _shift_right(values, shift, 32)
        values *= _signed32(factor)
    return values


def _shift_right(values: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    # Torch's shift repeats the sign; the mask makes the new bits zero.
    return (values >> bits) & ((1 << (width - bits)) - 1)


def _signed32(value: int) -> int:
    return (value ^ (1 << 31)) - (1 << 31)


def _signed64(value: int) -> int:
    return (value ^ (1 << 63)) - (1 << 63)
