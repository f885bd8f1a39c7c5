"""The model that is evaluated: a folder, a training checkpoint, or a server; and what identifies it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from evaluation.backends.choice import BackendChoice
from foundation import formats
from foundation.errors import UserError
from foundation.files import sha256_file
from foundation.manifest import MANIFEST, check_manifest, read_manifest


@dataclass(frozen=True)
class EvaluatedModel:
    """`location` is what the backend opens, `identity` goes into the results, `named` is what the user said."""

    location: str
    identity: dict[str, Any]
    named: str

    def default_results(self) -> Path:
        """Where results go without --out. Raises UserError for a server, which has no folder here."""
        if self.named.startswith(("http://", "https://")):
            raise UserError(f"{self.named} is a server: say with --out where its results go")
        return Path(self.named) / "evaluation"


def find_model(named: str, choice: BackendChoice) -> EvaluatedModel:
    """The model behind what the user named; a training checkpoint is converted on the way.

    Raises UserError unless it is a whole model, or a URL for the backend `http`.
    """
    if choice.name == "http":
        if not named.startswith(("http://", "https://")):
            raise UserError(f"the backend http asks a server: {named} is no URL, such as http://127.0.0.1:8000")
        served = str(choice.server.get("model") or "")
        parts = urlsplit(named)
        # Results tell the address, never a password in it.
        shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        known = hashlib.sha256(f"{shown} {served}".encode()).hexdigest()
        # A server's word is all there is: nothing here can hash its files.
        about = {"served_model": served or None}
        return EvaluatedModel(
            named, {"path": shown, "files_sha256": known, "manifest_sha256": None, "about": about}, named
        )
    if named.startswith(("http://", "https://")):
        raise UserError(f"{named} is a server: add --backend http")
    from conversion.cached import cached_conversion

    folder = cached_conversion(Path(named), "hf") or Path(named)
    _check_model_folder(folder)
    return EvaluatedModel(str(folder), {**_describe(folder), "path": named}, named)


def _check_model_folder(folder: Path) -> None:
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
            f"{folder} is not a model in Hugging Face's format, for it has no config.json, nor a training run, for it "
            "has no checkpoint"
        )
    problems = check_manifest(folder, manifest, checksums=False) if manifest else []
    if problems:
        raise UserError(f"{problems[0]}: convert the model again")


def _describe(folder: Path) -> dict[str, Any]:
    """What identifies the model: its files' SHA-256 over all, and its manifest where there is one.

    A manifest holds the files' hashes, so that terabytes need not be read again; without one they are read.
    """
    manifest = read_manifest(folder)
    if manifest:
        hashes = {name: record.sha256 for name, record in manifest.files.items()}
    else:
        hashes = {path.name: sha256_file(path) for path in sorted(folder.iterdir()) if path.is_file()}
    return {
        "files_sha256": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        "manifest_sha256": sha256_file(folder / MANIFEST) if manifest else None,
        "about": manifest.about if manifest else None,
    }
