"""What a device and its links do, as a cluster file states it: every value with its source."""

import math
from functools import lru_cache
from typing import NamedTuple

from pydantic import Field, model_validator

from foundation.config import StrictModel


class Sourced(StrictModel):
    """A value and where it is from: a data sheet, a paper, a fit, or a measurement."""

    value: float = Field(ge=0)
    source: str = Field(min_length=1)


class Tile(NamedTuple):
    """The part of a product that one unit computes at once, and how fast beside the best."""

    rows: int
    columns: int
    speed: float


class Matmul(StrictModel):
    """How much of its peak a device reaches in a matrix product.

    `curve` is points of size, the cube root of m n k, and share of the peak, between which the logarithm of the
    size interpolates. `tiles` add what a curve cannot say: `units` of the device work on as many tiles at a time,
    so that a last, partly filled wave costs as much as a full one; each tile pays `depth_overhead` more terms of
    the sum to begin and end (NVIDIA, Matrix Multiplication Background User's Guide).
    """

    curve: tuple[tuple[float, float], ...] = Field(min_length=1)
    tiles: tuple[Tile, ...] = ()
    units: int = Field(default=1, ge=1)
    depth_overhead: float = Field(default=0.0, ge=0)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _rising(self) -> "Matmul":
        sizes = [size for size, _ in self.curve]
        if sizes != sorted(set(sizes)) or min(sizes) <= 0:
            raise ValueError("the curve's sizes must be positive and rise")
        return self

    def share(self, size: float) -> float:
        """Share of the peak at a size; beyond the curve's ends that of the end."""
        before = self.curve[0]
        for point in self.curve:
            if size <= point[0]:
                if point[0] == before[0]:
                    return point[1]
                place = math.log(size / before[0]) / math.log(point[0] / before[0])
                return before[1] + place * (point[1] - before[1])
            before = point
        return before[1]


class Cores(StrictModel):
    """Processor cores that a node's ranks share: the device's figures are one core's.

    `speedup` is what all of them do of what one does, measured with as many threads or processes at once.
    """

    count: int = Field(ge=1)
    speedup: Sourced


class Device(StrictModel):
    """A device that holds one rank; of a CPU, one core."""

    name: str
    peak_tflops: Sourced = Field(description="in the run's precision, dense, 10^12 FLOP/s")
    memory_gb_per_second: Sourced = Field(description="peak of its memory; of a CPU, what a copy reaches")
    memory_share: Sourced = Field(description="of that peak, what element-wise operations reach")
    copy_share: Sourced | None = Field(
        default=None, description="the same of sums and copies alone, such as the optimizer's; none: memory_share"
    )
    matmul: Matmul
    fused_attention_share: Sourced = Field(description="share of the peak that a fused attention kernel reaches")
    launch_microseconds: Sourced = Field(description="what an operation costs however little it does")
    cores: Cores | None = Field(default=None, description="of a CPU, whose ranks share them")

    @property
    def peak(self) -> float:
        """FLOP/s."""
        return self.peak_tflops.value * 1e12

    @property
    def launch_seconds(self) -> float:
        """Least time of an operation."""
        return self.launch_microseconds.value * 1e-6

    @property
    def bytes_per_second(self) -> float:
        """What element-wise operations read and write."""
        return self.memory_gb_per_second.value * 1e9 * self.memory_share.value

    def moving_seconds(self, size: float) -> float:
        """Time to read and write `size` bytes, all together, in an element-wise operation."""
        return size / self.bytes_per_second

    def copying_seconds(self, size: float) -> float:
        """The same of operations that hardly compute: adding gradients up, the optimizer."""
        share = self.copy_share or self.memory_share
        return size / (self.memory_gb_per_second.value * 1e9 * share.value)

    def matmul_seconds(self, rows: int, columns: int, depth: int, batch: int = 1, width: int = 2) -> float:
        """Time of `batch` products [rows, depth] [depth, columns] of elements of `width` bytes.

        The slower of its arithmetic and of moving its operands and result through memory once.
        """
        return _matmul_seconds(self, rows, columns, depth, batch, width)


class Link(StrictModel):
    """What one device sends to another of its level while it receives as much."""

    gb_per_second: Sourced = Field(description="10^9 bytes a second, device and direction, as reached")
    microseconds: Sourced = Field(description="time of a message without content")
    collective_gb_per_second: Sourced | None = Field(
        default=None, description="the same in a ring over many nodes while all others run theirs; none: as between two"
    )

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth."""
        return self.gb_per_second.value * 1e9

    @property
    def seconds(self) -> float:
        """Latency."""
        return self.microseconds.value * 1e-6


class Links(StrictModel):
    """The two levels of a cluster."""

    node: Link = Field(description="between the devices of a node")
    network: Link | None = Field(default=None, description="between nodes; none: there is one node")


@lru_cache(maxsize=65536)
def _matmul_seconds(device: Device, rows: int, columns: int, depth: int, batch: int, width: int) -> float:
    matmul = device.matmul
    share = matmul.share((batch * rows * columns * depth) ** (1 / 3))
    rate = device.peak * share
    if matmul.tiles:
        computing = min(
            math.ceil(batch * math.ceil(rows / tile.rows) * math.ceil(columns / tile.columns) / matmul.units)
            * 2.0
            * tile.rows
            * tile.columns
            * (depth + matmul.depth_overhead)
            / (rate / matmul.units * tile.speed)
            for tile in matmul.tiles
        )
    else:
        computing = 2.0 * batch * rows * columns * depth / rate
    moving = batch * (rows * depth + depth * columns + rows * columns) * width
    return max(computing, device.copying_seconds(moving)) + device.launch_seconds
