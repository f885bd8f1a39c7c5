"""This project's own folders for vLLM as a source: to look at them, to compare them, and to convert them back."""

from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ValidationError

from conversion.safetensors_file import Entry, read_header
from conversion.source import WEIGHT, Source
from conversion.stored import Extent, StoredSlice
from conversion.vllm import vllm_tensor
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.formats import VLLM
from foundation.manifest import MANIFEST, Manifest, read_manifest
from training.model.config import ModelConfig
from training.model.tensors import TensorSpec, tensor_table
from training.parallel.layout import Layout


class _About(BaseModel):
    model: ModelConfig
    tensor_parallel_size: int
    dtype: Literal["float32", "bfloat16", "float16"]
    step: int | None = None


def is_vllm_folder(path: Path) -> bool:
    """Whether `path` is a folder of sharded_state files, committed or not."""
    return any(path.glob("model-rank-*-part-*.safetensors"))


def read_vllm(folder: Path) -> Source:
    """The resharded model in `folder`; headers and manifest are read, no tensor.

    Raises UserError when it has no manifest (the files alone do not say what model they are of), lacks a file, or
    holds other tensors than its manifest's model has.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(
            f"{folder} has no {MANIFEST}, so its files cannot be told apart from an unfinished copy; convert it again"
        )
    if manifest.format != VLLM:
        raise UserError(f"{folder} holds {manifest.format}, not a model resharded for vLLM")
    try:
        about = _About.model_validate(manifest.about)
    except ValidationError as error:
        raise UserError(f"{folder / MANIFEST} does not describe a model: {error.errors()[0]['loc']}") from None
    ranks = [_read_rank(folder, manifest, about, rank) for rank in range(about.tensor_parallel_size)]
    tensors = {(spec.name, WEIGHT): tuple(held[spec.name] for held in ranks) for spec in tensor_table(about.model)}
    tokenizer = all((folder / name).is_file() for name in ("vocab.json", "merges.txt"))
    return Source(
        format=VLLM,
        path=folder,
        identity=sha256_file(folder / MANIFEST),
        model=about.model,
        dtype=getattr(torch, about.dtype),
        layout=Layout(tensor_parallel_size=about.tensor_parallel_size),
        tensors=tensors,
        step=about.step,
        tokenizer=folder if tokenizer else None,
        files=dict(manifest.files),
    )


def _read_rank(folder: Path, manifest: Manifest, about: _About, rank: int) -> dict[str, StoredSlice]:
    """One worker's slices by the table's names, from all of its parts."""
    prefix = f"model-rank-{rank}-part-"
    entries: dict[str, tuple[Path, Entry]] = {}
    for name in manifest.files:
        if name.startswith(prefix):
            _, held = read_header(folder / name)
            entries.update({key: (folder / name, entry) for key, entry in held.items()})
    return {spec.name: _slice(folder, about, spec, rank, entries) for spec in tensor_table(about.model)}


def _slice(
    folder: Path, about: _About, spec: TensorSpec, rank: int, entries: dict[str, tuple[Path, Entry]]
) -> StoredSlice:
    wanted = vllm_tensor(about.model, spec, torch.float32, WEIGHT, rank, about.tensor_parallel_size)
    if wanted.key not in entries or wanted.placement is None:
        raise UserError(f"{folder}: no file of rank {rank} has tensor {wanted.key}; convert it again")
    path, entry = entries[wanted.key]
    if entry.shape != wanted.shape:
        raise UserError(
            f"{path}: tensor {wanted.key} has shape {entry.shape} where the model in the manifest at "
            f"{about.tensor_parallel_size} tensor slices has {wanted.shape}; convert it again"
        )
    return StoredSlice(entry.shape, entry.dtype, wanted.placement, (Extent(path, entry.offset, 0, entry.count),))
