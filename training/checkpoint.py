"""Checkpoints that are whole or ignored: files, then a manifest, then `latest`.

DeepSpeed writes a rank's files; its own `latest` is not a commit marker, so ours is written after
every file was flushed to disk and recorded with its size and SHA-256.
"""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch.distributed as dist

from foundation.errors import UserError
from foundation.files import fsync_file, fsync_folder, write_json, write_text
from foundation.manifest import MANIFEST, FileRecord, Manifest, check_manifest, read_manifest
from training.config import TrainConfig
from training.data.prepare import TOKENIZER_FOLDER

FORMAT = "mtnlg-training-checkpoint"
LATEST = "latest"


def checkpoint_root(run: Path) -> Path:
    """Where a run folder keeps its checkpoints."""
    return run / "checkpoints"


def save_checkpoint(engine: Any, config: TrainConfig, step: int) -> Path:
    """Write and commit the checkpoint of `step`. Collective: every rank must call it."""
    root = checkpoint_root(config.out)
    folder = root / f"step-{step:08d}"
    rank = dist.get_rank()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    dist.barrier()
    engine.save_checkpoint(str(root), tag=folder.name, save_latest=False)
    if rank == 0:
        shutil.copytree(config.data.path / TOKENIZER_FOLDER, folder / TOKENIZER_FOLDER)
    dist.barrier()
    records = _record_files(folder)
    if rank == 0:
        manifest = Manifest(format=FORMAT, about=_about(config, step), files=records)
        write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
        write_text(root / LATEST, folder.name)
    dist.barrier()
    return folder


def newest_checkpoint(run: Path) -> tuple[Path, Manifest] | None:
    """The newest committed checkpoint of a run that its manifest verifies; None when there is none.

    A folder without a manifest was being written when the run ended, and is passed over.
    """
    for folder in sorted(checkpoint_root(run).glob("step-*"), reverse=True):
        manifest = read_manifest(folder)
        if manifest is not None and not check_manifest(folder, manifest):
            return folder, manifest
    return None


def load_checkpoint(engine: Any, config: TrainConfig, folder: Path, manifest: Manifest) -> int:
    """Restore weights and optimizer from a committed checkpoint; returns its step. Collective.

    Raises UserError when the checkpoint is of another model or layout.
    """
    for key, mine in (("model", config.model), ("layout", config.layout)):
        theirs = manifest.about[key]
        if theirs != mine.model_dump(mode="json"):
            raise UserError(
                f"{folder} was written with another {key} ({_difference(theirs, mine.model_dump(mode='json'))}); "
                f"resume with that one, or start anew with --restart"
            )
    loaded, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    if loaded is None:
        raise UserError(f"DeepSpeed could not load {folder}")
    return int(manifest.about["step"])


def _record_files(folder: Path) -> dict[str, FileRecord]:
    """Flush and measure every file, the work shared out over the ranks."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    mine = {}
    for path in files[dist.get_rank() :: dist.get_world_size()]:
        fsync_file(path)
        mine[str(path.relative_to(folder))] = FileRecord.of(path)
    gathered: list[dict[str, FileRecord]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, mine)
    fsync_folder(folder)
    return dict(sorted(item for records in gathered for item in records.items()))


def _about(config: TrainConfig, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "consumed_samples": step * config.training.global_batch_size,
        "layout": config.layout.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "precision": config.training.precision,
        "versions": {name: version(name) for name in ("mtnlg", "torch", "deepspeed")},
    }


def _difference(theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    names = sorted(name for name in {*theirs, *mine} if theirs.get(name) != mine.get(name))
    return ", ".join(f"{name} {theirs.get(name)} instead of {mine.get(name)}" for name in names)
