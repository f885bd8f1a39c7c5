"""The plan of a conversion as a person reads it."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from conversion.cast import dtype_name
from conversion.plan import OutputFile, OutputTensor, Plan
from conversion.target import Target
from training.model.tensors import TensorSpec

_SHOWN_FILES = 40


def print_plan(plan: Plan, target: Target) -> None:
    """Print what would be read and written: totals, files, and how each kind of tensor is put together."""
    # As wide as it needs: a table that wraps its names is not read.
    source, console = plan.source, Console(width=160, soft_wrap=True)
    console.print(f"source         {source.path}: {source.format}, {source.layout}, {dtype_name(source.dtype)}")
    console.print(f"target         {target.description}")
    console.print(f"reads          {_bytes(plan.bytes_read)} of {_bytes(source.size)}")
    console.print(f"writes         {_bytes(plan.bytes_written)} in {len(plan.files)} files")
    console.print(f"peak memory    {_bytes(plan.peak_bytes)} beyond the interpreter; no temporary files")
    console.print()
    console.print(_files(plan))
    console.print(_kinds(plan))


def _files(plan: Plan) -> Table:
    table = Table("file", "tensors", "size", box=None, header_style="bold")
    for file in plan.files[:_SHOWN_FILES]:
        table.add_row(file.name, f"{len(file.tensors):,}", _bytes(file.size))
    if len(plan.files) > _SHOWN_FILES:
        rest = plan.files[_SHOWN_FILES:]
        table.add_row(f"... {len(rest)} more", f"{sum(len(f.tensors) for f in rest):,}", _bytes(sum(map(_size, rest))))
    return table


def _kinds(plan: Plan) -> Table:
    """One line for each way in which a tensor is made; blocks differ in their number alone."""
    tensors = (tensor for file in plan.files for tensor in file.tensors)
    rows = Counter(_kind(plan, tensor, tensor.spec) for tensor in tensors if tensor.spec is not None)
    table = Table("tensor", "sliced", "stored as", "made of", "outputs", box=None, header_style="bold")
    for row, count in rows.items():
        table.add_row(*row, f"{count:,}")
    return table


def _kind(plan: Plan, tensor: OutputTensor, spec: TensorSpec) -> tuple[str, str, str, str]:
    copies = plan.copies(tensor)
    slices = len({copy.source for copy in copies})
    cast = "" if plan.inputs(tensor)[0].dtype == tensor.dtype else f", cast to {dtype_name(tensor.dtype)}"
    padding = (tensor.placement.rows if tensor.placement else 0) - sum(copy.length for copy in copies)
    made = f"{_count(len(copies), 'run')} of {_count(slices, 'slice')}"
    extra = f", {padding} rows of padding" if padding else ""
    part = ", a part" if tensor.part is not None else ""
    state = "" if tensor.state == "weight" else f" ({tensor.state})"
    shape = "part of " + str(list(tensor.slice_shape)) if part else str(list(tensor.shape))
    return _general(spec) + state, spec.slicing.value, shape, f"{made}{extra}{cast}"


def _general(spec: TensorSpec) -> str:
    """The name with the block's number left out."""
    return ".".join("N" if part.isdigit() else part for part in spec.name.split("."))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _size(file: OutputFile) -> int:
    return file.size


def _bytes(size: int) -> str:
    number, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:,.1f} {units[0]}" if units[0] != "B" else f"{size} B"
