"""The model folder: what may be evaluated, and what identifies it."""

import hashlib
import json
from pathlib import Path
from typing import Any

from foundation import formats
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.manifest import MANIFEST, check_manifest, read_manifest


def check_model_folder(folder: Path) -> None:
    """Raises UserError unless `folder` holds a whole model in Hugging Face's format."""
    if not folder.is_dir():
        raise UserError(f"no model folder at {folder}")
    manifest = read_manifest(folder)
    if manifest and manifest.format == formats.VLLM:
        raise UserError(
            f"{folder} is resharded for vLLM; evaluate the same checkpoint in Hugging Face's format: "
            "mtnlg convert CHECKPOINT OUT --to hf"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not a model in Hugging Face's format: it has no config.json; "
            "a training run becomes one with: mtnlg convert RUN OUT --to hf"
        )
    problems = check_manifest(folder, manifest, checksums=False) if manifest else []
    if problems:
        raise UserError(f"{problems[0]}: convert the model again")


def describe_model(folder: Path) -> dict[str, Any]:
    """What identifies the model: its files' SHA-256 over all, and its manifest where there is one.

    A manifest holds the files' hashes, so that terabytes need not be read again; without one they are read.
    """
    manifest = read_manifest(folder)
    if manifest:
        hashes = {name: record.sha256 for name, record in manifest.files.items()}
    else:
        hashes = {path.name: sha256_file(path) for path in sorted(folder.iterdir()) if path.is_file()}
    return {
        "path": str(folder),
        "files_sha256": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        "manifest_sha256": sha256_file(folder / MANIFEST) if manifest else None,
        "about": manifest.about if manifest else None,
    }
