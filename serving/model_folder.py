"""What lies in a model folder, and whether it may be served; refusals come before anything heavy is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import read_json
from foundation.formats import HF, TRAINING, VLLM
from foundation.manifest import Manifest, check_manifest, read_manifest


@dataclass(frozen=True)
class ModelFolder:
    """A model that can be served. `dtype` is what its weights are stored in, where the folder says so."""

    path: Path
    name: str
    tensor_parallel_size: int
    sharded: bool
    dtype: str | None


def inspect_model(folder: Path, tensor_parallel_size: int | None) -> ModelFolder:
    """Look at `folder` and settle the number of tensor slices, which resharded files dictate.

    Files are compared with the manifest, where there is one: vLLM itself would load slices that are
    short, or too few, with no more than a warning. Raises UserError for a folder that is not a model,
    is damaged, or holds another number of slices.
    """
    folder = folder.resolve()
    manifest = read_manifest(folder)
    if _is_training_run(folder, manifest):
        raise UserError(
            f"{folder} holds training checkpoints, which cannot be served as they are; first: "
            f"mtnlg convert {folder} {folder}-vllm --to vllm --tensor-parallel-size {tensor_parallel_size or 1}"
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"no model at {folder}: it has no config.json")
    sharded = manifest is not None and manifest.format == VLLM
    size = tensor_parallel_size or 1
    if manifest is not None and manifest.format in {HF, VLLM}:
        if sharded:
            size = _slices(folder, manifest, tensor_parallel_size)
        if problems := check_manifest(folder, manifest):
            raise UserError(f"damaged model: {problems[0]}; convert or copy it again")
    return ModelFolder(folder, folder.name, size, sharded, _dtype(read_json(folder / "config.json")))


def _is_training_run(folder: Path, manifest: Manifest | None) -> bool:
    if manifest is not None:
        return manifest.format == TRAINING
    return (folder / "checkpoints").is_dir() or (folder / "latest").is_file()


def _slices(folder: Path, manifest: Manifest, wanted: int | None) -> int:
    held = int(manifest.about["tensor_parallel_size"])
    if wanted is not None and wanted != held:
        raise UserError(
            f"{folder} holds {held} tensor slices, so --tensor-parallel-size {wanted} cannot serve it; "
            f"leave the option out, or write other slices: mtnlg convert ... --tensor-parallel-size {wanted}"
        )
    return held


def _dtype(config: dict[str, Any]) -> str | None:
    dtype = config.get("dtype", config.get("torch_dtype"))
    return dtype if isinstance(dtype, str) else None
