"""The verb `convert`: a checkpoint of one format and layout becomes one of another, tensor by tensor."""

import importlib.metadata
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conversion.agreement import verify_conversion
from conversion.cast import Cast, dtype_name
from conversion.hf import hf_target
from conversion.journal import Written, forget_journal
from conversion.megatron import megatron_target
from conversion.open_source import open_source
from conversion.plan import Plan
from conversion.print_plan import print_plan
from conversion.progress import progress_bar
from conversion.source import WEIGHT, Source
from conversion.target import Target
from conversion.training import training_target
from conversion.vllm import vllm_target
from conversion.write import write_files
from foundation.errors import UserError
from foundation.files import fsync_folder, write_text
from foundation.formats import TRAINING
from foundation.manifest import check_manifest, read_manifest, write_manifest
from training.checkpoint.names import LATEST, OPTIMIZER_STATES, checkpoint_root, step_folder
from training.parallel.layout import Layout

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEFAULT_FILE_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Options:
    """What a conversion is asked for; sizes of None are 1, or for `training` and `megatron` the source's own.

    The last two are what a Megatron checkpoint without training arguments does not tell of its model.
    """

    to: str
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    dtype: str | None = None
    file_bytes: int = DEFAULT_FILE_BYTES
    vocab_size: int | None = None
    num_attention_heads: int | None = None


def convert(
    source: Path,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
    verify: bool = False,
) -> None:
    """Write the checkpoint at `source` to folder `out` as `options` say; with `dry_run` print the plan alone.

    An output that is already there and whole is kept when it came from the same checkpoint with the same options; any
    other is replaced only with `overwrite`. Interrupted, the same call goes on behind the last finished file. With
    `verify` both sides are then run on the same prompts.
    Raises UserError when there is no whole checkpoint, when the model cannot be cut so, or `out` may not be written.
    """
    opened = open_source(source, vocab_size=options.vocab_size, num_attention_heads=options.num_attention_heads)
    opened.check_complete()
    target = make_target(opened, options)
    plan = Plan(opened, target.files)
    if dry_run:
        print_plan(plan, target)
        return
    if not opened.identity:
        raise UserError(f"{source} is a configuration: only --dry-run can plan from it; give a run's folder to convert")
    folder = step_folder(out, int(target.about["step"])) if target.format == TRAINING else out
    about = _about(opened, target, options)
    if _already_converted(folder, target.format, about, overwrite):
        print(f"{out}: already converted from {_step(opened)}")
    else:
        _write(plan, target, out, folder, about, Cast(_dtype(opened, options)))
    if verify:
        dtype = _dtype(opened, options)
        print(f"{out}: {verify_conversion(opened, _state(opened, dtype), out, dtype)}")


def _write(plan: Plan, target: Target, out: Path, folder: Path, about: dict[str, Any], cast: Cast) -> None:
    started = time.monotonic()
    building = folder.resolve().with_name(f".{folder.name}.unfinished")
    _check_space(plan, building)
    with _files_checked_meanwhile(plan, building):
        written = _build(plan, target, building, about, cast)
    _commit(target, building, folder, {**about, "tensors": written.tensors}, written)
    if target.format == TRAINING:
        write_text(checkpoint_root(out) / LATEST, folder.name)
    if warning := cast.warning():
        print(f"mtnlg: warning: {warning}", file=sys.stderr)
    print(f"{out}: {_step(plan.source)} as {target.description}, in {time.monotonic() - started:.1f} s")


def make_target(source: Source, options: Options) -> Target:
    """The format, files and layout that the options ask for. Raises UserError when they contradict each other."""
    dtype, size = _dtype(source, options), options.tensor_parallel_size or 1
    if options.to != "training" and options.data_parallel_size:
        raise UserError(f"--to {options.to} has no data parallelism; that size is for --to training")
    if options.to in ("hf", "vllm") and (options.pipeline_parallel_size or 1) > 1:
        raise UserError(f"--to {options.to} has no pipeline parallelism; that size is for --to training and megatron")
    if options.to == "hf":
        if size != 1:
            raise UserError("--tensor-parallel-size is not for --to hf: that format holds the whole model")
        return hf_target(source, dtype, _state(source, dtype), options.file_bytes)
    if options.to == "vllm":
        return vllm_target(source, dtype, _state(source, dtype), size, options.file_bytes)
    sizes = {
        name: getattr(options, name) or getattr(source.layout, name)
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    }
    if options.to == "megatron":
        layout = Layout(**{**sizes, "data_parallel_size": 1})
        return megatron_target(source, dtype, _state(source, dtype), layout)
    return training_target(source, dtype, Layout(**sizes))


def _dtype(source: Source, options: Options) -> torch.dtype:
    return _DTYPES[options.dtype] if options.dtype else source.dtype


def _state(source: Source, dtype: torch.dtype) -> str:
    """What to read the weights from: the fp32 masters, where they hold more than the weights do."""
    master = OPTIMIZER_STATES[0]
    return master if dtype == torch.float32 != source.dtype and master in source.states else WEIGHT


def _step(source: Source) -> str:
    return source.path.name if source.step is None else f"step {source.step}"


def _about(source: Source, target: Target, options: Options) -> dict[str, Any]:
    packages = ("mtnlg", "torch", "safetensors", "tokenizers")
    return {
        "step": source.step,
        "model": source.model.model_dump(mode="json"),
        "dtype": dtype_name(_dtype(source, options)),
        **target.about,
        "source_sha256": source.identity,
        "source_format": source.format,
        "source_layout": source.layout.model_dump(mode="json"),
        "file_bytes": options.file_bytes,
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def _already_converted(out: Path, format: str, about: dict[str, Any], overwrite: bool) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    manifest = read_manifest(out) if out.is_dir() else None
    if manifest is None or "source_sha256" not in manifest.about:
        # Never removed, not even with --overwrite: it is somebody's folder, not an output of ours.
        raise UserError(f"{out} exists and is not a finished conversion; choose another folder or remove it")
    same = manifest.format == format and _comparable(manifest.about) == _comparable(about)
    if same and not check_manifest(out, manifest, checksums=False):
        return True
    if not same and not overwrite:
        found = f"{manifest.format} of step {manifest.about.get('step')}"
        raise UserError(f"{out} already holds another conversion ({found}); add --overwrite to replace it")
    return False


def _comparable(about: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key not in ("versions", "tensors")}


@contextmanager
def _files_checked_meanwhile(plan: Plan, building: Path) -> Iterator[None]:
    """Compare every file that the plan reads with the source's own manifest while the block runs.

    Raises UserError at the block's end when one is damaged, which says more than what the block may have stumbled on;
    what was made of it is removed.
    """
    with ThreadPoolExecutor(1) as threads:
        checks = [threads.submit(plan.source.problems, [name]) for name in _files_read(plan)]
        try:
            yield
        except UserError:
            _raise_problems(checks, building)
            raise
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
        _raise_problems(checks, building)


def _files_read(plan: Plan) -> list[str]:
    """The names of the files that hold what the plan reads, as far as the source's manifest lists them."""
    tensors = [tensor for file in plan.files for tensor in file.tensors]
    extents = (extent for tensor in tensors for piece in plan.inputs(tensor) for extent in piece.extents)
    names = {file.relative_to(plan.source.path).as_posix() for file in {extent.file for extent in extents}}
    if plan.source.tokenizer is not None:
        names |= {name for name in plan.source.files if (plan.source.path / name).parent == plan.source.tokenizer}
    return sorted(names & set(plan.source.files))


def _raise_problems(checks: Sequence[Future[list[str]]], building: Path) -> None:
    problems = [problem for check in checks for problem in check.result()]
    if problems:
        shutil.rmtree(building, ignore_errors=True)
        more = f" (and {len(problems) - 1} more files are damaged)" if len(problems) > 1 else ""
        raise UserError(f"damaged checkpoint: {problems[0]}{more}; use another checkpoint or copy it again")


def _check_space(plan: Plan, building: Path) -> None:
    held = sum(path.stat().st_size for path in building.rglob("*") if path.is_file()) if building.is_dir() else 0
    existing = next(folder for folder in building.parents if folder.is_dir())
    free, needed = shutil.disk_usage(existing).free, plan.bytes_written - held
    if free < needed:
        raise UserError(f"{building.parent} has {free / 1e9:.1f} GB free, but the output needs {needed / 1e9:.1f} GB")


def _build(plan: Plan, target: Target, building: Path, about: dict[str, Any], cast: Cast) -> Written:
    building.mkdir(parents=True, exist_ok=True)
    with progress_bar("Converting", plan.bytes_written) as progress:
        written = write_files(plan, building, _comparable(about), cast, progress)
    target.write_beside(building)
    return written


def _commit(target: Target, building: Path, folder: Path, about: dict[str, Any], written: Written) -> None:
    forget_journal(building)
    files = [path for path in building.rglob("*") if path.is_file()]
    write_manifest(building, target.format, about, files, written.files)
    if folder.exists():
        shutil.rmtree(folder)
    building.replace(folder)
    fsync_folder(folder.parent)
