"""`mtnlg checkpoint diff`: two checkpoints of any formats and layouts, compared tensor by tensor."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from conversion.cast import dtype_name
from conversion.finished import open_finished
from conversion.progress import progress_bar
from conversion.source import WEIGHT, Source, bits
from conversion.whole import whole_tensor
from foundation.console import table_console
from training.model.tensors import TensorSpec, tensor_table

_SHOWN = 20
_FIELDS = {"num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size", "layernorm_epsilon"}
# Differences are computed in float64, so many elements at a time.
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Difference:
    """What sets two tensors apart.

    `largest` is the largest absolute difference and `relative` the norm of the difference over that of the first
    tensor; `count` of `elements` differ, the first at `index`, where the tensors hold `values`.
    """

    largest: float
    relative: float
    count: int
    elements: int
    index: tuple[int, ...]
    values: tuple[float, float]


@dataclass(frozen=True)
class Compared:
    """One tensor of two checkpoints: equal (`cast` names the narrower dtype where that took a cast) or not, and why."""

    name: str
    state: str
    cast: str = ""
    missing: str = ""  # why there is nothing to compare
    difference: Difference | None = None

    @property
    def equal(self) -> bool:
        """Whether both checkpoints hold the same."""
        return not self.missing and self.difference is None

    @property
    def badness(self) -> float:
        """For sorting, the worst first: what is missing or not a number, then by relative difference."""
        if self.difference is None or math.isnan(self.difference.relative):
            return math.inf
        return self.difference.relative


def diff(first: Path, second: Path, *, all_tensors: bool = False, optimizer: bool = False) -> bool:
    """Print how two checkpoints differ; whether they are equal, bit for bit or after a cast to the narrower dtype.

    At most 20 differing tensors are listed unless `all_tensors`; the optimizer's states are compared with `optimizer`,
    where both have them. One tensor of each is in memory at a time. Raises UserError when either is not a checkpoint.
    """
    pair = open_finished(first), open_finished(second)
    for source in pair:
        source.check_complete()
    for title, text in _heads(pair, (first, second), optimizer).items():
        print(f"{title:<12}{text}")
    results = _compare_all(pair, _states(pair) if optimizer else (WEIGHT,))
    differing = sorted((found for found in results if not found.equal), key=lambda found: -found.badness)
    if differing:
        shown = differing if all_tensors else differing[:_SHOWN]
        print()
        table_console().print(_table(shown))
        if len(shown) < len(differing):
            print(f"... and {len(differing) - len(shown)} more; --all lists them")
    print()
    print(summary(results))
    return not differing


def compare_tensors(first: torch.Tensor, second: torch.Tensor) -> tuple[str, Difference | None]:
    """The dtype that one had to be cast to, or "", and how the two tensors of one shape differ, or None.

    Tensors of different dtypes are compared in the narrower, the one with fewer bits of precision.
    """
    narrower = max(first.dtype, second.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    cast = dtype_name(narrower) if first.dtype != second.dtype else ""
    first, second = first.to(narrower), second.to(narrower)
    return cast, None if torch.equal(bits(first), bits(second)) else _difference(first, second)


def summary(results: Sequence[Compared]) -> str:
    """One line: are they equal, and how many tensors are equal bit for bit, equal after a cast, different, missing."""
    casts = sorted({found.cast for found in results if found.equal and found.cast})
    counts = {
        "equal bit for bit": sum(found.equal and not found.cast for found in results),
        f"equal after casting to {' or '.join(casts)}": sum(found.equal and bool(found.cast) for found in results),
        "different": sum(found.difference is not None for found in results),
        "not in both": sum(bool(found.missing) for found in results),
    }
    parts = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    verdict = "equal" if all(found.equal for found in results) else "different"
    return f"{verdict}: {len(results):,} tensors, {parts}"


def _compare_all(pair: tuple[Source, Source], states: Sequence[str]) -> list[Compared]:
    specs = [{spec.name: spec for spec in tensor_table(source.model)} for source in pair]
    names = [(name, state) for name in specs[0] | specs[1] for state in states]
    results = []
    with progress_bar("Comparing", sum(source.size for source in pair)) as advance:
        for name, state in names:
            results.append(_compare(pair, (specs[0].get(name), specs[1].get(name)), name, state))
            advance(sum(piece.size for source in pair for piece in source.tensors.get((name, state), ())), name)
    return results


def _compare(
    pair: tuple[Source, Source], specs: tuple[TensorSpec | None, TensorSpec | None], name: str, state: str
) -> Compared:
    first, second = specs
    if first is None or second is None:
        return Compared(name, state, missing=f"not in the {'first' if first is None else 'second'}")
    if first.shape != second.shape:
        return Compared(name, state, missing=f"shape {list(first.shape)} and {list(second.shape)}")
    cast, difference = compare_tensors(whole_tensor(pair[0], first, state), whole_tensor(pair[1], second, state))
    return Compared(name, state, cast, difference=difference)


def _difference(first: torch.Tensor, second: torch.Tensor) -> Difference:
    """Of two tensors of one shape and dtype that are not equal."""
    shape, elements = first.shape, first.numel()
    flat = first.reshape(-1), second.reshape(-1)
    largest, squares, norm = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    count, place = 0, -1
    for start in range(0, elements, _CHUNK):
        one, other = (part[start : start + _CHUNK] for part in flat)
        differ = bits(one) != bits(other)
        if place < 0 and bool(differ.any()):
            place = start + int(differ.int().argmax())
        count += int(differ.sum())
        # Where the bits are the same the difference is 0, of infinities and of NaN too.
        apart = torch.where(differ, one.double() - other.double(), 0.0)
        largest = torch.maximum(largest, apart.abs().max())
        squares += apart.square().sum()
        norm += one.double().square().sum()
    relative = math.sqrt(squares.item()) / math.sqrt(norm.item()) if norm else math.inf
    index = tuple(int(number) for number in torch.unravel_index(torch.tensor(place), shape))
    values = float(flat[0][place]), float(flat[1][place])
    return Difference(largest.item(), relative, count, elements, index, values)


def _states(pair: tuple[Source, Source]) -> tuple[str, ...]:
    return tuple(state for state in pair[0].states if state in pair[1].states)


def _heads(pair: tuple[Source, Source], paths: tuple[Path, Path], optimizer: bool) -> dict[str, str]:
    lines = {
        title: f"{path}: {source.format}, {dtype_name(source.dtype)}, {source.layout}"
        for title, source, path in zip(("first", "second"), pair, paths, strict=True)
    }
    lines |= {"model": _models(pair), "step": _steps(pair)}
    if optimizer and len(_states(pair)) == 1:
        lacking = [title for title, source in zip(("first", "second"), pair, strict=True) if len(source.states) == 1]
        lines["optimizer"] = f"not compared: no optimizer states in the {' and the '.join(lacking)}"
    return lines


def _models(pair: tuple[Source, Source]) -> str:
    """The fields of the model that differ; not those that only training knows (padding, dropout)."""
    first, second = (source.model.model_dump(include=_FIELDS) for source in pair)
    apart = [f"{name} {value} and {second[name]}" for name, value in first.items() if value != second[name]]
    return ", ".join(apart) or "the same"


def _steps(pair: tuple[Source, Source]) -> str:
    first, second = ("unknown" if source.step is None else f"{source.step:,}" for source in pair)
    return f"{first} in both" if first == second else f"{first} and {second}"


def _table(differing: Sequence[Compared]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("differing tensor", overflow="fold")
    table.add_column("largest", justify="right")
    table.add_column("relative", justify="right")
    table.add_column("elements that differ", justify="right")
    table.add_column("first of them", overflow="fold")
    for found in differing:
        name = found.name + ("" if found.state == WEIGHT else f" ({found.state})")
        if found.difference is None:
            table.add_row(name, "", "", "", found.missing)
            continue
        apart = found.difference
        counts = f"{apart.count:,} of {apart.elements:,}" + (f" in {found.cast}" if found.cast else "")
        first = f"{list(apart.index)}: {apart.values[0]:.6g} and {apart.values[1]:.6g}"
        table.add_row(name, f"{apart.largest:.3g}", f"{apart.relative:.3g}", counts, first)
    return table
