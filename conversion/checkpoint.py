"""Reading a training checkpoint of any layout, one whole tensor at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.formats import TRAINING
from foundation.manifest import MANIFEST, Manifest, check_manifest, read_manifest
from training.checkpoint.names import LATEST, checkpoint_root, weights_file
from training.model.config import ModelConfig
from training.model.slicing import join_slices
from training.model.tensors import TensorSpec, layer_tensors

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_TOKENIZER_FILES = ("tokenizer/vocab.json", "tokenizer/merges.txt")


class _Layout(BaseModel):
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int


class _About(BaseModel):
    step: int
    layout: _Layout
    model: ModelConfig
    precision: str
    stage_bounds: list[int]


@dataclass(frozen=True)
class Checkpoint:
    """A committed training checkpoint; open it with `open_checkpoint`.

    `identity` is the SHA-256 of its manifest, which lists the SHA-256 of every file: it names the
    contents wherever the folder lies.
    """

    folder: Path
    identity: str
    step: int
    tensor_parallel_size: int
    stage_bounds: tuple[int, ...]
    model: ModelConfig
    dtype: torch.dtype
    manifest: Manifest

    @property
    def vocab_json(self) -> Path:
        """GPT-2 BPE's token to id mapping."""
        return self.folder / _TOKENIZER_FILES[0]

    @property
    def merges_txt(self) -> Path:
        """GPT-2 BPE's merges, best first."""
        return self.folder / _TOKENIZER_FILES[1]

    def check(self) -> None:
        """Raise UserError unless every file that conversion reads is as its manifest says (size, SHA-256)."""
        needed = {path.name for stage in self._stages() for path in self._files(stage)} | set(_TOKENIZER_FILES)
        absent = sorted(needed - set(self.manifest.files))
        if absent:
            raise UserError(f"checkpoint {self.folder} does not hold {absent[0]}, which its model needs")
        records = {name: self.manifest.files[name] for name in sorted(needed)}
        problems = check_manifest(self.folder, self.manifest.model_copy(update={"files": records}))
        if problems:
            more = f" (and {len(problems) - 1} more files are damaged)" if len(problems) > 1 else ""
            raise UserError(f"damaged checkpoint: {problems[0]}{more}; use another checkpoint or copy it again")

    def tensors(self) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Every tensor of the table, whole, in pipeline order; files are mapped, so one is in memory at a time.

        Raises UserError naming tensor and files when slices have the wrong shape or replicas differ.
        """
        for stage in self._stages():
            files = self._files(stage)
            slices = [_open(path) for path in files]
            specs = self._specs(stage)
            for path, held in zip(files, slices, strict=True):
                _check_tensors(path, held, specs, self.model, self.tensor_parallel_size)
            for spec in specs:
                try:
                    yield spec, join_slices(spec, [held.get_tensor(spec.name) for held in slices])
                except ValueError as error:
                    raise UserError(f"{error}: files {', '.join(map(str, files))}") from None

    def _stages(self) -> range:
        return range(len(self.stage_bounds) - 1)

    def _specs(self, stage: int) -> list[TensorSpec]:
        layers = range(self.stage_bounds[stage], self.stage_bounds[stage + 1])
        return [spec for layer in layers for spec in layer_tensors(self.model, layer)]

    def _files(self, stage: int) -> list[Path]:
        return [self.folder / weights_file(stage, rank) for rank in range(self.tensor_parallel_size)]


def open_checkpoint(source: Path) -> Checkpoint:
    """The checkpoint that `source` means: a run folder, its `checkpoints`, or one checkpoint in it.

    A run's checkpoint is the one that `latest` names. Nothing but manifests is read yet. Raises UserError
    when there is none, or when it was never committed.
    """
    folder = _find(source)
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
    return Checkpoint(
        folder=folder,
        identity=sha256_file(folder / MANIFEST),
        step=about.step,
        tensor_parallel_size=about.layout.tensor_parallel_size,
        stage_bounds=tuple(about.stage_bounds),
        model=about.model,
        dtype=_DTYPES[about.precision],
        manifest=manifest,
    )


def _find(source: Path) -> Path:
    if not source.is_dir():
        raise UserError(f"no checkpoint at {source}: there is no such folder")
    root = checkpoint_root(source)
    folder = root if root.is_dir() else source
    latest = folder / LATEST
    if latest.is_file():
        return folder / latest.read_text(encoding="utf-8").strip()
    if (folder / MANIFEST).is_file() or any(folder.glob("weights-*")):
        return folder
    raise UserError(f"no checkpoint at {source}: expected a training run's folder, or one checkpoint in it")


def _not_committed(folder: Path) -> UserError:
    committed = sorted(path.parent.name for path in folder.parent.glob(f"*/{MANIFEST}"))
    hint = f"; {folder.parent / committed[-1]} is whole" if committed else ""
    return UserError(f"no committed checkpoint at {folder}: it has no {MANIFEST}, so its writing never finished{hint}")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _check_tensors(path: Path, held: Any, specs: list[TensorSpec], model: ModelConfig, size: int) -> None:
    expected = {spec.name: spec.slice_shape(model, size) for spec in specs}
    found = {name: tuple(held.get_slice(name).get_shape()) for name in held.keys()}  # noqa: SIM118 - no mapping
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UserError(
                f"{path}: tensor {name} has shape {found.get(name, 'none (absent)')} where the model in the manifest "
                f"at {size} tensor slices has {expected.get(name, 'none (unknown)')}"
            )
