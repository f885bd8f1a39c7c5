"""`mtnlg checkpoint inspect`: what a checkpoint is, and the tensors in it."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from conversion.cast import dtype_name
from conversion.finished import checkpoint_files, open_finished
from conversion.source import WEIGHT, Source
from foundation.console import table_console
from foundation.manifest import Manifest, read_manifest
from training.model.tensors import tensor_table
from training.parallel.layout import Layout

# Where the output is not a terminal, which has a width of its own, lines are as long as they need to be.


@dataclass(frozen=True)
class Row:
    """A tensor, or `count` of them that differ in their block's number alone; `bytes` are of all slices together."""

    name: str
    state: str
    shape: tuple[int, ...]
    dtype: str
    slicing: str
    slices: int
    bytes: int
    count: int = 1


def inspect(path: Path, *, all_tensors: bool = False, optimizer: bool = False, as_json: bool = False) -> None:
    """Print what the checkpoint at `path` is and its tensors; reads headers and manifest, no tensor.

    Blocks are one line a kind unless `all_tensors`; the optimizer's tensors are listed with `optimizer` only.
    Raises UserError when there is no checkpoint or its writing never finished.
    """
    source = open_finished(path)
    rows = list(_rows(source, optimizer))
    if not all_tensors:
        rows = _collapsed(rows)
    summary = _summary(source, read_manifest(source.path))
    if as_json:
        print(json.dumps({**summary, "tensors": [vars(row) for row in rows]}, indent=2))
        return
    for title, text in _summary_lines(summary).items():
        print(f"{title:<16}{text}")
    print()
    console = table_console()
    console.print(_tensors_table(rows, optimizer))


def _rows(source: Source, optimizer: bool) -> Iterator[Row]:
    for spec in tensor_table(source.model):
        for state in source.states if optimizer else (WEIGHT,):
            pieces = source.tensors.get((spec.name, state), ())
            dtype = ", ".join(sorted({dtype_name(piece.dtype) for piece in pieces})) or "missing"
            size = sum(piece.size for piece in pieces)
            yield Row(spec.name, state, spec.shape, dtype, spec.slicing.value, len(pieces), size)


def _collapsed(rows: list[Row]) -> list[Row]:
    general = [replace(row, name=_without_number(row.name)) for row in rows]
    return [replace(row, count=count, bytes=count * row.bytes) for row, count in Counter(general).items()]


def _without_number(name: str) -> str:
    return ".".join("N" if part.isdigit() else part for part in name.split("."))


def _summary(source: Source, manifest: Manifest | None) -> dict[str, Any]:
    model, files = source.model, checkpoint_files(source)
    return {
        "path": str(source.path),
        "format": source.format,
        "committed": manifest is not None,
        "step": source.step,
        "layout": source.layout.model_dump(mode="json"),
        "model": {
            "layers": model.num_layers,
            "hidden": model.hidden_size,
            "heads": model.num_attention_heads,
            "sequence": model.sequence_length,
            "vocabulary": model.vocab_size,
            "parameters": sum(math.prod(spec.shape) for spec in tensor_table(model)),
        },
        "states": {state: _dtypes(source, state) for state in source.states},
        "files": len(files),
        "bytes": sum(files.values()),
        "converted_from": _origin(manifest),
    }


def _dtypes(source: Source, state: str) -> list[str]:
    pieces = (piece for (_, held), slices in source.tensors.items() if held == state for piece in slices)
    return sorted({dtype_name(piece.dtype) for piece in pieces})


def _origin(manifest: Manifest | None) -> dict[str, Any] | None:
    """Format, layout and SHA-256 of the manifest of what it was converted from; None where nothing says so."""
    if manifest is None or "source_sha256" not in manifest.about:
        return None
    return {key: manifest.about.get(f"source_{key}") for key in ("format", "layout", "sha256")}


def _summary_lines(summary: dict[str, Any]) -> dict[str, str]:
    model = summary["model"]
    rows = {
        "checkpoint": summary["path"],
        "format": summary["format"],
        "committed": "yes" if summary["committed"] else "it has no manifest.json: nothing says whether it is whole",
        "step": "unknown" if summary["step"] is None else f"{summary['step']:,}",
        "layout": str(Layout.model_validate(summary["layout"])),
        "model": f"{model['layers']} layers, hidden {model['hidden']}, {model['heads']} heads, sequence "
        f"{model['sequence']}, vocabulary {model['vocabulary']}, {model['parameters']:,} parameters",
        "states": "; ".join(f"{state} {', '.join(dtypes)}" for state, dtypes in summary["states"].items()),
        "files": f"{summary['files']:,}, {summary['bytes']:,} bytes",
    }
    if summary["converted_from"]:
        rows["converted from"] = _origin_line(summary["converted_from"])
    return rows


def _origin_line(origin: dict[str, Any]) -> str:
    parts = [origin["format"], origin["layout"] and str(Layout.model_validate(origin["layout"]))]
    return ", ".join([*filter(None, parts), f"manifest {origin['sha256'][:16]}..."])


def _tensors_table(rows: list[Row], optimizer: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("tensor", *(["state"] if optimizer else []), "shape", "dtype", "slicing"):
        table.add_column(title, overflow="fold")
    for title in ("slices", "bytes", "tensors"):
        table.add_column(title, justify="right")
    for row in rows:
        state = [row.state] if optimizer else []
        numbers = [f"{row.slices}", f"{row.bytes:,}", f"{row.count:,}"]
        table.add_row(row.name, *state, str(list(row.shape)), row.dtype, row.slicing, *numbers)
    return table
