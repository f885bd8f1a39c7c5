"""What lies in a model folder, and whether it may be served; refusals come before anything heavy is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import read_json
from foundation.formats import HF, TRAINING, VLLM
from foundation.manifest import Manifest, check_manifest, read_manifest
from serving.conversion_process import convert_apart

# The files of every kind of tokenizer that vLLM loads.
_TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ParallelSizes:
    """How often and into how many parts a model is cut: slices of every layer, stages of layers, replicas.

    `tensor` is None where the files may say it.
    """

    tensor: int | None = None
    pipeline: int = 1
    data: int = 1


@dataclass(frozen=True)
class ModelFolder:
    """A model that can be served. `dtype` is what its weights are stored in, where the folder says so.

    `sharded`: its files are slices, of which each worker reads its own.
    """

    path: Path
    name: str
    tensor_parallel_size: int
    sharded: bool
    dtype: str | None
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def workers(self) -> int:
        """Processes that compute."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


def inspect_model(path: Path, sizes: ParallelSizes, engine_options: Sequence[str] = ()) -> ModelFolder:
    """Look at the model at `path` and settle the number of tensor slices, which resharded files dictate.

    Of a training run, or one of its checkpoints, it is the conversion, which is made now unless the cache has it.
    Files are compared with the manifest, where there is one: vLLM itself would load slices that are
    short, or too few, with no more than a warning. Raises UserError for what is not a model, is damaged, has no
    tokenizer, or cannot be cut so.
    """
    path = path.resolve()
    manifest = read_manifest(path)
    if not _is_training_run(path, manifest):
        return _inspect_folder(path, path.name, manifest, sizes, engine_options)
    # Slices cannot be cut into stages, nor quantised while they are loaded.
    whole = sizes.pipeline > 1 or _has_option(engine_options, "--quantization", "-q")
    folder = convert_apart(path, "hf" if whole else "vllm", sizes.tensor or 1)
    if folder is None:
        raise UserError(f"{path} holds no finished checkpoint: the run has not written its first one")
    name = path.parent.name if path.name == _CHECKPOINTS else path.name
    return _inspect_folder(folder, name, read_manifest(folder), sizes, engine_options)


def _inspect_folder(
    folder: Path, name: str, manifest: Manifest | None, sizes: ParallelSizes, engine_options: Sequence[str]
) -> ModelFolder:
    if not (folder / "config.json").is_file():
        raise UserError(f"no model at {folder}: it has no config.json, nor checkpoints of a training run")
    sharded = manifest is not None and manifest.format == VLLM
    slices = sizes.tensor or 1
    if manifest is not None and manifest.format in {HF, VLLM}:
        if sharded:
            slices = _slices(folder, manifest, sizes)
        if problems := check_manifest(folder, manifest):
            raise UserError(f"damaged model: {problems[0]}; convert or copy it again")
    _check_tokenizer(folder, engine_options)
    dtype = _dtype(read_json(folder / "config.json"))
    return ModelFolder(folder, name, slices, sharded, dtype, sizes.pipeline, sizes.data)


def _is_training_run(folder: Path, manifest: Manifest | None) -> bool:
    if manifest is not None:
        return manifest.format == TRAINING
    if (folder / "config.json").is_file():
        return False
    return (folder / _CHECKPOINTS).is_dir() or (folder / "latest").is_file() or any(folder.glob("weights-stage-*"))


def _slices(folder: Path, manifest: Manifest, sizes: ParallelSizes) -> int:
    held = int(manifest.about["tensor_parallel_size"])
    if sizes.pipeline > 1:
        raise UserError(
            f"{folder} holds tensor slices, which cannot be cut into {sizes.pipeline} pipeline stages; serve the "
            "training run itself, or a whole model: mtnlg convert RUN OUT --to hf"
        )
    if sizes.tensor is not None and sizes.tensor != held:
        raise UserError(
            f"{folder} holds {held} tensor slices, so --tensor-parallel-size {sizes.tensor} cannot serve it; "
            f"leave the option out, or write other slices: mtnlg convert ... --tensor-parallel-size {sizes.tensor}"
        )
    return held


def _check_tokenizer(folder: Path, engine_options: Sequence[str]) -> None:
    if _has_option(engine_options, "--tokenizer") or any(any(folder.glob(name)) for name in _TOKENIZER_FILES):
        return
    raise UserError(
        f"{folder} has no tokenizer: the checkpoint came without one, or it was not copied; name a folder that has the "
        "model's with --tokenizer FOLDER"
    )


def _has_option(given: Sequence[str], *names: str) -> bool:
    return any(argument.partition("=")[0] in names for argument in given)


def _dtype(config: dict[str, Any]) -> str | None:
    dtype = config.get("dtype", config.get("torch_dtype"))
    return dtype if isinstance(dtype, str) else None
