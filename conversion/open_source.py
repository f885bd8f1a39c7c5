"""Whatever a path means as a source: which format lies there, opened without reading a tensor."""

from pathlib import Path

from conversion.read_hf import CONFIG, read_hf_folder
from conversion.read_megatron import find_megatron_checkpoint, read_megatron
from conversion.read_training import find_training_checkpoint, planned_checkpoint, read_training_checkpoint
from conversion.read_vllm import is_vllm_folder, read_vllm
from conversion.source import Source
from foundation.config import load_config
from foundation.errors import UserError


def open_source(path: Path, *, vocab_size: int | None = None, num_attention_heads: int | None = None) -> Source:
    """The checkpoint at `path`; the sizes are for Megatron's, where its files do not tell them.

    Raises UserError saying what was looked for when there is none.
    """
    if (megatron := find_megatron_checkpoint(path)) is not None:
        return read_megatron(megatron, vocab_size=vocab_size, num_attention_heads=num_attention_heads)
    if (vocab_size, num_attention_heads) != (None, None):
        raise UserError(f"--vocab-size and --num-attention-heads are for Megatron's checkpoints; {path} is none")
    if path.suffix in (".yaml", ".yml"):
        return _planned(path)
    if not path.exists():
        raise UserError(f"no checkpoint at {path}: there is no such folder")
    folder = find_training_checkpoint(path)
    if folder is not None:
        return read_training_checkpoint(folder)
    if is_vllm_folder(path):
        return read_vllm(path)
    if (path / CONFIG).is_file():
        return read_hf_folder(path)
    raise UserError(
        f"no checkpoint at {path}: expected a training run's folder, one checkpoint in it, a folder with {CONFIG}, or "
        "a Megatron checkpoint"
    )


def _planned(path: Path) -> Source:
    """What the run of a training configuration will have written."""
    from training.config import TrainConfig

    config = load_config(TrainConfig, path)
    return planned_checkpoint(path, config.model, config.layout, config.training.precision)
