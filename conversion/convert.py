"""The verb `convert`: a training checkpoint of any layout becomes a model folder for inference."""

import importlib.metadata
import math
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from conversion.cast import Cast, dtype_name
from conversion.checkpoint import Checkpoint, open_checkpoint
from conversion.hf import weights_bytes, write_hf
from conversion.vllm import CONTRACT, check_divides, slices_bytes, write_vllm
from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import building_folder
from foundation.formats import HF, VLLM
from foundation.manifest import check_manifest, read_manifest, write_manifest
from training.model.tensors import TensorSpec, tensor_table

_FORMATS = {"hf": HF, "vllm": VLLM}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def convert(
    source: Path,
    out: Path,
    *,
    to: str,
    tensor_parallel_size: int = 1,
    dtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write checkpoint `source` to folder `out` as `to` (hf or vllm), in `dtype` (default: as stored).

    One tensor is in memory at a time. An output that is already there and whole is kept when it came
    from the same checkpoint with the same options; any other is replaced only with `overwrite`.
    Raises UserError when there is no committed or whole checkpoint, when `tensor_parallel_size` does not
    divide the model, or when `out` may not be written. An interrupted conversion leaves no output.
    """
    checkpoint = open_checkpoint(source)
    if to == "hf" and tensor_parallel_size != 1:
        raise UserError("--tensor-parallel-size is for --to vllm; Hugging Face's format holds the whole model")
    check_divides(checkpoint.model, tensor_parallel_size)
    target = _DTYPES[dtype] if dtype else checkpoint.dtype
    about = _about(checkpoint, to, tensor_parallel_size, target)
    if _already_converted(out, _FORMATS[to], about, overwrite):
        print(f"{out}: already converted from step {checkpoint.step}")
        return
    checkpoint.check()
    _check_space(out, checkpoint, to, tensor_parallel_size, target)
    started = time.monotonic()
    cast = Cast(target)
    with building_folder(out) as folder:
        tensors = _with_progress(checkpoint)
        if to == "hf":
            write_hf(folder, checkpoint, tensors, cast)
        else:
            write_vllm(folder, checkpoint, tensors, cast, tensor_parallel_size)
        write_manifest(folder, _FORMATS[to], about, [path for path in folder.rglob("*") if path.is_file()])
    if warning := cast.warning():
        print(f"mtnlg: warning: {warning}", file=sys.stderr)
    slices = f", {tensor_parallel_size} tensor slices" if to == "vllm" else ""
    print(f"{out}: step {checkpoint.step} as {to}, {dtype_name(target)}{slices}, in {time.monotonic() - started:.1f} s")


def _about(checkpoint: Checkpoint, to: str, tensor_parallel_size: int, dtype: torch.dtype) -> dict[str, Any]:
    packages = ("mtnlg", "torch", "safetensors", "tokenizers")
    return {
        "source_sha256": checkpoint.identity,
        "step": checkpoint.step,
        "model": checkpoint.model.model_dump(mode="json"),
        "tensor_parallel_size": tensor_parallel_size,
        "dtype": dtype_name(dtype),
        "contract": CONTRACT if to == "vllm" else "GPT2LMHeadModel",
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def _already_converted(out: Path, format: str, about: dict[str, Any], overwrite: bool) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    manifest = read_manifest(out) if out.is_dir() else None
    if manifest is None or manifest.format not in _FORMATS.values():
        # Never removed, not even with --overwrite: it is somebody's folder, not an output of ours.
        raise UserError(f"{out} exists and is not a finished conversion; choose another folder or remove it")
    same = manifest.format == format and _without_versions(manifest.about) == _without_versions(about)
    if same and not check_manifest(out, manifest, checksums=False):
        return True
    if not same and not overwrite:
        found = f"{manifest.format} of step {manifest.about.get('step')}"
        raise UserError(f"{out} already holds another conversion ({found}); add --overwrite to replace it")
    return False


def _without_versions(about: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key != "versions"}


def _check_space(out: Path, checkpoint: Checkpoint, to: str, tensor_parallel_size: int, dtype: torch.dtype) -> None:
    needed = weights_bytes(checkpoint, dtype) if to == "hf" else slices_bytes(checkpoint, dtype, tensor_parallel_size)
    existing = next(folder for folder in out.resolve().parents if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(f"{out} needs {needed / 1e9:.1f} GB, but {existing} has {free / 1e9:.1f} GB free")


def _with_progress(checkpoint: Checkpoint) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
    """The checkpoint's tensors, with a bar on stderr that counts the bytes read."""
    total = sum(math.prod(spec.shape) for spec in tensor_table(checkpoint.model)) * checkpoint.dtype.itemsize
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=error_console(), transient=True) as progress:
        task = progress.add_task("Converting", total=total)
        for spec, whole in checkpoint.tensors():
            yield spec, whole
            progress.update(task, advance=whole.nbytes, description=spec.name)
