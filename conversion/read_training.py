"""This project's training checkpoints of any layout as a source; and a configuration, as one that is not yet there."""

from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError

from conversion.placement import place
from conversion.safetensors_file import Entry, read_header
from conversion.source import WEIGHT, Source
from conversion.stored import Extent, StoredSlice
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.formats import TRAINING
from foundation.manifest import MANIFEST, Manifest, check_manifest, read_manifest
from training.checkpoint.names import LATEST, OPTIMIZER_STATES, checkpoint_root, optimizer_file, weights_file
from training.model.config import ModelConfig
from training.model.tensors import TensorSpec, layer_tensors, tensor_table
from training.parallel.layout import Layout

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOKENIZER = "tokenizer"


class _About(BaseModel):
    step: int
    layout: Layout
    model: ModelConfig
    precision: str
    stage_bounds: list[int]


def find_training_checkpoint(path: Path) -> Path | None:
    """The checkpoint that `path` means: a run folder, its `checkpoints`, or one checkpoint in it; None if none.

    A run's checkpoint is the one that `latest` names.
    """
    root = checkpoint_root(path)
    folder = root if root.is_dir() else path
    latest = folder / LATEST
    if latest.is_file():
        return folder / latest.read_text(encoding="utf-8").strip()
    return folder if any(folder.glob("weights-*")) else None


def read_training_checkpoint(folder: Path) -> Source:
    """The committed checkpoint in `folder`; headers and manifest are read, no tensor.

    Raises UserError when it was never committed, lacks a file, or holds other tensors than its manifest's model has.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise _not_committed(folder)
    if manifest.format != TRAINING:
        raise UserError(f"{folder} holds {manifest.format}, not a training checkpoint")
    try:
        about = _About.model_validate(manifest.about)
    except ValidationError as error:
        raise UserError(f"{folder / MANIFEST} does not describe a checkpoint: {error.errors()[0]['loc']}") from None
    if about.precision not in _DTYPES:
        raise UserError(f"{folder / MANIFEST}: unknown precision {about.precision!r}; known: {', '.join(_DTYPES)}")
    if problems := check_manifest(folder, manifest, checksums=False):
        raise UserError(f"damaged checkpoint: {problems[0]}; use another or copy it again")
    layout = about.layout
    return Source(
        format=TRAINING,
        path=folder,
        identity=sha256_file(folder / MANIFEST),
        model=about.model,
        dtype=_DTYPES[about.precision],
        layout=layout,
        tensors=dict(_read_tensors(folder, manifest, about, layout)),
        step=about.step,
        tokenizer=folder / TOKENIZER if (folder / TOKENIZER).is_dir() else None,
        about={**manifest.about, **_optimizer_step(folder, manifest)},
        files=dict(manifest.files),
    )


def planned_checkpoint(path: Path, model: ModelConfig, layout: Layout, precision: str) -> Source:
    """A checkpoint that a run with this configuration would write: sizes and slices, no files. For plans."""
    tensors = {}
    dtype = _DTYPES[precision]
    states = [(WEIGHT, dtype), *((state, torch.float32) for state in OPTIMIZER_STATES)]
    for spec in tensor_table(model):
        for state, state_dtype in states:
            tensors[spec.name, state] = tuple(
                StoredSlice(
                    spec.slice_shape(model, layout.tensor_parallel_size),
                    state_dtype,
                    place(spec, model, rank, layout.tensor_parallel_size),
                    (),
                )
                for rank in range(layout.tensor_parallel_size)
            )
    return Source(TRAINING, path, "", model, dtype, layout, tensors)


def _optimizer_step(folder: Path, manifest: Manifest) -> dict[str, int]:
    name = optimizer_file(OPTIMIZER_STATES[0], 0, 0, 0)
    if name not in manifest.files:
        return {}
    metadata, _ = read_header(folder / name)
    return {"optimizer_step": int(metadata.get("step", 0))}


def _read_tensors(
    folder: Path, manifest: Manifest, about: _About, layout: Layout
) -> Iterator[tuple[tuple[str, str], tuple[StoredSlice, ...]]]:
    states = [state for state in OPTIMIZER_STATES if optimizer_file(state, 0, 0, 0) in manifest.files]
    for stage in range(len(about.stage_bounds) - 1):
        layers = range(about.stage_bounds[stage], about.stage_bounds[stage + 1])
        specs = [spec for layer in layers for spec in layer_tensors(about.model, layer)]
        weights = [_weights(folder, manifest, about, specs, stage, rank) for rank in range(layout.tensor_parallel_size)]
        for spec in specs:
            yield (spec.name, WEIGHT), tuple(held[spec.name] for held in weights)
        for state in states:
            yield from _optimizer(folder, manifest, about, specs, stage, state)


def _weights(
    folder: Path, manifest: Manifest, about: _About, specs: list[TensorSpec], stage: int, rank: int
) -> dict[str, StoredSlice]:
    size = about.layout.tensor_parallel_size
    path = _listed(folder, manifest, weights_file(stage, rank))
    _, entries = read_header(path)
    expected = {spec.name: spec.slice_shape(about.model, size) for spec in specs}
    found = {name: entry.shape for name, entry in entries.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{path}: tensor {name} has shape {found.get(name, 'none (absent)')} where the model in the manifest "
                f"at {size} tensor slices has {expected.get(name, 'none (unknown)')}"
            )
    return {spec.name: _stored(spec, about.model, rank, size, path, entries[spec.name]) for spec in specs}


def _stored(spec: TensorSpec, model: ModelConfig, rank: int, size: int, path: Path, entry: Entry) -> StoredSlice:
    extents = (Extent(path, entry.offset, 0, entry.count),)
    return StoredSlice(entry.shape, entry.dtype, place(spec, model, rank, size), extents)


def _optimizer(
    folder: Path, manifest: Manifest, about: _About, specs: list[TensorSpec], stage: int, state: str
) -> Iterator[tuple[tuple[str, str], tuple[StoredSlice, ...]]]:
    size, replicas = about.layout.tensor_parallel_size, range(about.layout.data_parallel_size)
    paths = [
        [_listed(folder, manifest, optimizer_file(state, stage, rank, replica)) for replica in replicas]
        for rank in range(size)
    ]
    headers = [[(path, *read_header(path)) for path in of_rank] for of_rank in paths]
    for spec in specs:
        slices = []
        for rank, of_rank in enumerate(headers):
            extents = tuple(
                Extent(path, entries[spec.name].offset, int(metadata[spec.name]), entries[spec.name].count)
                for path, metadata, entries in of_rank
                if spec.name in entries and entries[spec.name].count
            )
            shape, placement = spec.slice_shape(about.model, size), place(spec, about.model, rank, size)
            slices.append(StoredSlice(shape, torch.float32, placement, extents))
        yield (spec.name, state), tuple(slices)


def _listed(folder: Path, manifest: Manifest, name: str) -> Path:
    if name not in manifest.files:
        raise UserError(f"checkpoint {folder} does not hold {name}, which its model needs")
    return folder / name


def _not_committed(folder: Path) -> UserError:
    committed = sorted(path.parent.name for path in folder.parent.glob(f"*/{MANIFEST}"))
    hint = f"; {folder.parent / committed[-1]} is whole" if committed else ""
    return UserError(f"no committed checkpoint at {folder}: it has no {MANIFEST}, so its writing never finished{hint}")
