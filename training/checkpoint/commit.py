"""What makes a checkpoint count: every file measured, the manifest last, then `latest`; and which one to resume."""

import shutil
import time
from pathlib import Path

import torch.distributed as dist

from foundation.errors import UserError
from foundation.files import fsync_folder, read_json, write_json, write_text
from foundation.formats import TRAINING
from foundation.manifest import MANIFEST, FileRecord, Manifest, check_manifest, read_manifest
from training.checkpoint.names import LATEST, checkpoint_root

_RECORDS = "records"


def write_record(folder: Path, rank: int, files: list[Path]) -> None:
    """Say that `rank` has written `files` and flushed them to the disk."""
    records = {str(path.relative_to(folder)): FileRecord.of(path).model_dump() for path in files}
    write_json(folder / _RECORDS / f"rank-{rank:05d}.json", records)


def commit(folder: Path, world_size: int, about: dict[str, object], timeout: float) -> None:
    """Wait for every rank's record, then write the manifest and `latest`. One rank calls it.

    Ranks meet through the file system, not a collective, so that training goes on meanwhile.
    Raises UserError when a record does not come within `timeout` seconds.
    """
    paths = [folder / _RECORDS / f"rank-{rank:05d}.json" for rank in range(world_size)]
    deadline = time.monotonic() + timeout
    while missing := [path for path in paths if not path.is_file()]:
        if time.monotonic() > deadline:
            raise UserError(f"{folder}: {missing[0].stem} wrote no checkpoint within {timeout:.0f} s")
        time.sleep(0.02)
    files = {name: FileRecord(**record) for path in paths for name, record in read_json(path).items()}
    fsync_folder(folder)
    manifest = Manifest(format=TRAINING, about=about, files=dict(sorted(files.items())))
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    write_text(folder.parent / LATEST, folder.name)
    shutil.rmtree(folder / _RECORDS)


def prune(run: Path, keep_last: int, keep_every: int) -> None:
    """Remove committed checkpoints but the newest `keep_last` and those of steps divisible by `keep_every`."""
    committed = _committed(run)
    for folder in committed[keep_last:]:
        step = int(folder.name.removeprefix("step-"))
        if keep_every == 0 or step % keep_every:
            # The manifest goes first: a half-removed folder must not look whole.
            (folder / MANIFEST).unlink()
            shutil.rmtree(folder)


def discard_unfinished(run: Path) -> list[str]:
    """Remove folders that were never committed; a line for each. Rank 0 calls it before anyone saves."""
    lines = []
    for folder in sorted(checkpoint_root(run).glob("step-*")):
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(folder)
            lines.append(f"{folder} was never finished and is removed")
    return lines


def newest_checkpoint(run: Path) -> tuple[Path, Manifest] | None:
    """The newest committed checkpoint that its manifest verifies, judged by this process alone."""
    for folder in _committed(run):
        manifest = read_manifest(folder)
        if manifest is not None and not check_manifest(folder, manifest):
            return folder, manifest
    return None


def agree_on_newest(run: Path) -> tuple[tuple[Path, Manifest] | None, list[str]]:
    """`newest_checkpoint`, the checksums shared out over the ranks, and what was passed over. Collective."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    names: list[list[str]] = [[folder.name for folder in _committed(run)]] if rank == 0 else [[]]
    dist.broadcast_object_list(names, src=0)
    skipped: list[str] = []
    for name in names[0]:
        folder = checkpoint_root(run) / name
        manifest = read_manifest(folder)
        problems = [f"{folder} has no manifest"]
        if manifest is not None:
            mine = dict(sorted(manifest.files.items())[rank::world_size])
            problems = check_manifest(folder, manifest.model_copy(update={"files": mine}))
        gathered: list[list[str]] = [[] for _ in range(world_size)]
        dist.all_gather_object(gathered, problems)
        found = [problem for part in gathered for problem in part]
        if manifest is not None and not found:
            return (folder, manifest), skipped
        skipped.append(f"{folder} is passed over: {found[0]}")
    return None, skipped


def _committed(run: Path) -> list[Path]:
    folders = (path.parent for path in checkpoint_root(run).glob(f"step-*/{MANIFEST}"))
    return sorted(folders, reverse=True)
