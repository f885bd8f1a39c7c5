"""`mtnlg checkpoint verify`: is a checkpoint what its manifest says, and are its tensors sound?"""

import hashlib
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from conversion.finished import checkpoint_files, open_finished
from conversion.progress import Advance, progress_bar
from conversion.read_training import find_training_checkpoint
from conversion.safetensors_file import Entry, read_header
from conversion.source import Source, check_replicas
from conversion.stored import StoredSlice
from foundation.errors import UserError
from foundation.manifest import MANIFEST, Manifest, check_manifest, read_manifest
from training.model.tensors import Slicing, TensorSpec, tensor_table

_CHUNK = 1 << 22
_NAMED = 5


@dataclass
class Findings:
    """A line for each problem, which makes a checkpoint unfit for use, and for each thing that is only odd."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def verify(path: Path) -> None:
    """Check files and tensors of the checkpoint at `path`; print a line a problem, or that it is whole.

    Files are compared with the manifest by size and SHA-256; without a manifest only tensors can be checked. Values
    that are not finite and files that the manifest does not know are warnings, on standard error. Raises UserError
    with the number of problems, or when there is no checkpoint.
    """
    folder = find_training_checkpoint(path) or path
    manifest = read_manifest(folder)
    findings = Findings()
    if manifest is not None:
        _check_files(folder, manifest, findings)
    try:
        source = open_finished(path)
        source.check_complete()
        _check_tensors(source, findings)
    except UserError:
        # With a damaged file already found, that is why this does not open.
        if not findings.problems:
            raise
    for warning in findings.warnings:
        print(f"mtnlg: warning: {warning}", file=sys.stderr)
    for problem in findings.problems:
        print(problem)
    if findings.problems:
        count = len(findings.problems)
        raise UserError(f"{path}: {count} problem{'s' * (count > 1)}; use another checkpoint, or copy it again")
    print(f"{path}: {_verdict(source, manifest)}")


def _verdict(source: Source, manifest: Manifest | None) -> str:
    files = checkpoint_files(source)
    counts = f"{len(files):,} files, {sum(files.values()):,} bytes, {len(source.tensors):,} tensors"
    if manifest is None:
        return f"readable, {counts}; it has no {MANIFEST} to compare its files with"
    return f"whole, {counts}"


def _check_files(folder: Path, manifest: Manifest, findings: Findings) -> None:
    total = sum(record.size for record in manifest.files.values())
    with progress_bar("Files", total) as advance, ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda name: _damage(folder, manifest, name, advance), manifest.files))
    findings.problems += [line for lines in found for line in lines]
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    unknown = sorted(present - manifest.files.keys() - {MANIFEST})
    if unknown:
        findings.warnings.append(f"{folder}: not in its {MANIFEST}: {_names(unknown)}")


def _damage(folder: Path, manifest: Manifest, name: str, advance: Advance) -> list[str]:
    """What is wrong with a file, and with which of its tensors where their checksums are known."""
    record = manifest.files[name]
    lines = check_manifest(folder, Manifest(format=manifest.format, about={}, files={name: record}))
    tensors: dict[str, str] = manifest.about.get("tensors", {}).get(name, {})
    path = folder / name
    if lines and tensors and path.suffix == ".safetensors" and path.is_file() and path.stat().st_size == record.size:
        lines[0] += f"; {_damaged_tensors(path, tensors)}"
    advance(record.size, name)
    return lines


def _damaged_tensors(path: Path, checksums: dict[str, str]) -> str:
    try:
        _, entries = read_header(path)
    except UserError:
        return "its header is damaged"
    damaged = [
        key for key, checksum in checksums.items() if key not in entries or _sha256(path, entries[key]) != checksum
    ]
    return f"damaged tensors: {_names(damaged)}" if damaged else "every tensor is whole, the header is not"


def _sha256(path: Path, entry: Entry) -> str:
    digest, left = hashlib.sha256(), entry.size
    with path.open("rb") as handle:
        handle.seek(entry.offset)
        while left and (chunk := handle.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _check_tensors(source: Source, findings: Findings) -> None:
    specs = {spec.name: spec for spec in tensor_table(source.model)}
    with progress_bar("Tensors", source.size) as advance:
        for (name, state), pieces in source.tensors.items():
            try:
                check_replicas(source, specs[name], pieces)
                count = _not_finite(specs[name], pieces)
            except UserError as error:
                findings.problems.append(str(error))
                continue
            if count:
                some = f"{count:,} of {math.prod(specs[name].shape):,} values"
                findings.warnings.append(f"{source.path}: {name} ({state}): {some} are NaN or infinite")
            advance(sum(piece.size for piece in pieces), name)


def _not_finite(spec: TensorSpec, pieces: tuple[StoredSlice, ...]) -> int:
    """How many elements are NaN or infinite; of replicas, which are equal, in one."""
    count = 0
    for piece in pieces[:1] if spec.slicing is Slicing.REPLICATED else pieces:
        with piece.open() as tensor:
            count += tensor.numel() - int(tensor.isfinite().sum())
    return count


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
