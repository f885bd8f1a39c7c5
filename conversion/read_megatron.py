"""Megatron-LM's and Megatron-DeepSpeed's classic GPT checkpoints as a source: `mp_rank_*/model_optim_rng.pt`.

Names and layouts are those of Megatron-LM's legacy GPT model; the order of the fused query-key-value rows depends on
the checkpoint's version, as in `fix_query_key_value_ordering`
(https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/checkpointing.py). Files of the distributed
optimizer and optimizer states inside the files are not read.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conversion.megatron import HEAD, LATEST_ITERATION, RELEASE, megatron_name, stage_specs
from conversion.megatron_args import check_switches, describe_model, read_args
from conversion.placement import Order, Placement, place
from conversion.source import WEIGHT, Source
from conversion.stored import Extent, StoredSlice
from conversion.torch_zip import TorchTensor, read_torch_file, torch_file_fingerprint
from foundation.errors import UserError
from foundation.formats import MEGATRON
from foundation.manifest import FileRecord, read_manifest
from training.model.config import ModelConfig
from training.model.tensors import Slicing, TensorSpec
from training.parallel.layout import Layout

_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3}))?")
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_TOKENIZER = ("vocab.json", "merges.txt")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_EMBEDDING, _POSITIONS = "embedding.word_embeddings.weight", "embedding.position_embeddings.weight"
_HEAD = f"{HEAD}.weight"
_QKV_ORDERS = {0: Order.BLOCKS, 1.0: Order.INTERLEAVED, 2.0: Order.HEADS, 3.0: Order.HEADS}


@dataclass(frozen=True)
class _Rank:
    """One file: its tensors under the names that `megatron_name` gives, joined by dots, and what is beside them."""

    path: Path
    tensors: Mapping[str, TorchTensor]
    args: Mapping[str, Any]
    version: float
    iteration: int | None

    @property
    def blocks(self) -> int:
        """How many transformer blocks it has."""
        return len({name.split(".")[2] for name in self.tensors if name.startswith("encoder.layers.")})


def find_megatron_checkpoint(path: Path) -> Path | None:
    """The folder with `mp_rank_*` that `path` means: itself, or the child that its latest iteration names; else None.

    Raises UserError when that child is missing, or holds Megatron's newer, distributed format.
    """
    tracker = path / LATEST_ITERATION
    folder = path
    if tracker.is_file():
        name = tracker.read_text(encoding="utf-8").strip()
        if name != RELEASE and not name.isdecimal():
            raise UserError(f"{tracker} names {name!r}, which is neither a number nor {RELEASE}")
        folder = path / (name if name == RELEASE else f"iter_{int(name):07d}")
        if (path / f"global_step{name}").is_dir():
            raise UserError(
                f"{path} has DeepSpeed's own files, which are not known; save it from Megatron without --deepspeed"
            )
        if not folder.is_dir():
            raise UserError(f"{tracker} names {name}, but there is no folder {folder}; copy the checkpoint again")
    if any(_RANK.match(child.name) for child in folder.glob("mp_rank_*")):
        return folder
    if (folder / "common.pt").is_file() or (folder / ".metadata").is_file():
        raise UserError(
            f"{folder} is a distributed checkpoint of Megatron; save it with --ckpt-format torch to convert it"
        )
    if tracker.is_file():
        raise UserError(f"{folder} has no mp_rank_* folders, so it is no classic Megatron checkpoint")
    return None


def read_megatron(folder: Path, *, vocab_size: int | None = None, num_attention_heads: int | None = None) -> Source:
    """The checkpoint in `folder`, one that `find_megatron_checkpoint` found; no tensor but the embedding is read.

    `vocab_size` is the number of tokens that the tokenizer knows, by default the args'; where they have none every row
    counts as a token, padding included. `num_attention_heads` is for a checkpoint without args, which cannot tell it.
    Raises UserError naming the file when the layout is not whole, when tensors are missing, unknown or of other shapes,
    and when this project's GPT cannot be that model.
    """
    files = _find_files(folder)
    ranks = {rank: _read_rank(path) for rank, path in files.items()}
    layout = _layout(folder, ranks)
    model = _describe(ranks, layout, vocab_size, num_attention_heads)
    layout.check_model(model)
    _check_tied(ranks, layout)
    tensors = _read_tensors(ranks, model, layout)
    root = folder.parent if (folder.parent / LATEST_ITERATION).is_file() else folder
    records, samples = _records(root, files.values()), ranks[0, 0].args.get("consumed_train_samples")
    tokenizer = next((where for where in (folder, root) if all((where / name).is_file() for name in _TOKENIZER)), None)
    return Source(
        format=MEGATRON,
        path=root if records else folder,
        identity=_identity(folder, list(files.values()), tokenizer),
        model=model,
        dtype=tensors["word_embeddings.weight", WEIGHT][0].dtype,
        layout=layout,
        tensors=tensors,
        step=ranks[0, 0].iteration,
        tokenizer=tokenizer,
        about={"consumed_samples": samples} if isinstance(samples, int) else {},
        files=records,
    )


def _find_files(folder: Path) -> dict[tuple[int, int], Path]:
    """The files by (tensor rank, pipeline rank)."""
    found = {}
    for child in sorted(folder.glob("mp_rank_*")):
        match = _RANK.fullmatch(child.name)
        if match is None:
            raise UserError(f"{child}: this name is not mp_rank_TT or mp_rank_TT_PPP; expert parallelism is not known")
        path = next((child / name for name in _FILES if (child / name).is_file()), None)
        if path is None:
            raise UserError(f"{child} has no {' or '.join(_FILES)}; copy the checkpoint again")
        found[int(match[1]), int(match[2] or 0)] = path
    return found


def _read_rank(path: Path) -> _Rank:
    saved = read_torch_file(path)
    if not isinstance(saved, dict):
        raise UserError(f"{path} does not hold a dictionary; is this a Megatron checkpoint?")
    args = read_args(path, saved)
    check_switches(path, args)  # ahead of the tensors: it says why some are unknown
    version = saved.get("checkpoint_version", 0)
    if not isinstance(version, int | float) or version not in _QKV_ORDERS:
        known = ", ".join(map(str, _QKV_ORDERS))
        raise UserError(f"{path}: checkpoint_version is {version!r}; the known ones are {known}")
    model = saved.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("language_model"), dict):
        raise UserError(f"{path} has no model with a language_model; is this a classic Megatron GPT checkpoint?")
    tensors = {}
    for name, tensor in _flatten(model):
        known_name = _known_name(name)
        if not isinstance(tensor, TorchTensor) or known_name is None or known_name in tensors:
            raise UserError(f"{path}: unknown tensor {name}; this project's GPT has none of that name")
        if tensor.dtype not in _FLOATS or not tensor.contiguous:
            what = f"of {tensor.dtype}" if tensor.contiguous else "not contiguous"
            raise UserError(f"{path}: tensor {name} is {what}; save it as a contiguous one of a floating-point format")
        tensors[known_name] = tensor
    iteration = saved.get("iteration")
    return _Rank(path, tensors, args, float(version), iteration if isinstance(iteration, int) else None)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        found += _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _known_name(name: str) -> str | None:
    """The name that today's Megatron has for it; None when no version has a GPT's tensor of this name."""
    if name == _HEAD:
        return name
    part, _, rest = name.removeprefix("language_model.").partition(".")
    if part in ("encoder", "transformer"):
        rest = re.sub(r"^(layers\.\d+)\.attention\.", r"\1.self_attention.", rest)
        return f"encoder.{rest}"
    return name.removeprefix("language_model.") if part == "embedding" else None


def _layout(folder: Path, ranks: Mapping[tuple[int, int], _Rank]) -> Layout:
    """The layout that the files make. Raises UserError when one is missing or they contradict each other."""
    tensor_size, pipeline_size = (1 + max(rank[axis] for rank in ranks) for axis in (0, 1))
    any_rank = next(iter(ranks.values()))
    for axis, size, names in (
        ("tensor", tensor_size, ("tensor_model_parallel_size", "model_parallel_size")),
        ("pipeline", pipeline_size, ("pipeline_model_parallel_size",)),
    ):
        said = next((any_rank.args[name] for name in names if any_rank.args.get(name) is not None), size)
        if said != size:
            raise UserError(
                f"{folder} has {size} {axis} ranks, but {any_rank.path} was saved with {said}; copy it again"
            )
    for tensor, stage in itertools.product(range(tensor_size), range(pipeline_size)):
        if (tensor, stage) not in ranks:
            name = f"mp_rank_{tensor:02d}_{stage:03d}" if pipeline_size > 1 else f"mp_rank_{tensor:02d}"
            raise UserError(f"{folder} has no {name}, which the other files need; copy the checkpoint again")
    for rank in ranks.values():
        first = ranks[0, 0]
        if (rank.version, rank.iteration) != (first.version, first.iteration):
            raise UserError(
                f"{rank.path} is of iteration {rank.iteration} and version {rank.version}, but {first.path} of "
                f"{first.iteration} and {first.version}: they are of two checkpoints; copy one of them again"
            )
        if not rank.blocks:
            raise UserError(f"{rank.path} has no transformer layer; a stage without one is not known")
    return Layout(tensor_parallel_size=tensor_size, pipeline_parallel_size=pipeline_size)


def _describe(
    ranks: Mapping[tuple[int, int], _Rank], layout: Layout, vocab_size: int | None, heads: int | None
) -> ModelConfig:
    first = ranks[0, 0]
    for name in (_EMBEDDING, _POSITIONS):
        if name not in first.tensors or len(first.tensors[name].shape) != 2:
            raise UserError(f"{first.path} has no tensor language_model.{name} of two dimensions")
    rows, hidden = first.tensors[_EMBEDDING].shape
    shapes = {
        "num_layers": sum(ranks[0, stage].blocks for stage in range(layout.pipeline_parallel_size)),
        "hidden_size": hidden,
        "max_position_embeddings": first.tensors[_POSITIONS].shape[0],
        "padded_vocab_size": rows * layout.tensor_parallel_size,
    }
    return describe_model(first.path, first.args, shapes, vocab_size, heads)


def _read_tensors(
    ranks: Mapping[tuple[int, int], _Rank], model: ModelConfig, layout: Layout
) -> dict[tuple[str, str], tuple[StoredSlice, ...]]:
    tensors, first_block = {}, 0
    tensor_ranks = range(layout.tensor_parallel_size)
    for stage in range(layout.pipeline_parallel_size):
        members = [ranks[tensor, stage] for tensor in tensor_ranks]
        blocks = members[0].blocks
        names = {spec: ".".join(megatron_name(spec, first_block)) for spec in stage_specs(model, blocks, first_block)}
        for member in members:
            last = stage == layout.pipeline_parallel_size - 1
            allowed = {*names.values(), _HEAD} if last else set(names.values())
            if unknown := sorted(member.tensors.keys() - allowed):
                raise UserError(f"{member.path}: unknown tensor {unknown[0]}; this project's GPT has none there")
        for spec, name in names.items():
            slices = [_slice(member, rank, name, spec, model, layout) for rank, member in enumerate(members)]
            tensors[spec.name, WEIGHT] = tuple(slices)
        first_block += blocks
    return tensors


def _slice(member: _Rank, rank: int, name: str, spec: TensorSpec, model: ModelConfig, layout: Layout) -> StoredSlice:
    tensor, size = member.tensors.get(name), layout.tensor_parallel_size
    if tensor is None:
        raise UserError(f"{member.path} has no tensor {name}, which its model needs")
    vocabulary = tensor.shape[0] * size if spec.slicing is Slicing.VOCABULARY else 0
    placement = place(spec, model, rank, size, qkv=_QKV_ORDERS[member.version], vocabulary=vocabulary)
    expected = list(spec.shape)
    expected[placement.dimension] = placement.rows
    if tensor.shape != tuple(expected):
        raise UserError(
            f"{member.path}: tensor {name} has shape {tensor.shape} where the model at {size} tensor ranks has "
            f"{tuple(expected)}"
        )
    return _stored(tensor, placement)


def _stored(tensor: TorchTensor, placement: Placement) -> StoredSlice:
    extents = (Extent(tensor.file, tensor.offset, 0, tensor.elements),)
    return StoredSlice(tensor.shape, tensor.dtype, placement, extents)


def _check_tied(ranks: Mapping[tuple[int, int], _Rank], layout: Layout) -> None:
    """Raise UserError unless the last stage's copies of the embedding, where there are any, equal the first's."""
    for rank in range(layout.tensor_parallel_size):
        first, last = ranks[rank, 0], ranks[rank, layout.pipeline_parallel_size - 1]
        copy = last.tensors.get(_HEAD)
        if copy is None:
            continue
        embedding = first.tensors[_EMBEDDING]
        rows = Placement(0, embedding.shape[0], embedding.shape[0])
        with _stored(embedding, rows).open() as one, _stored(copy, rows).open() as other:
            if one.dtype != other.dtype or not torch.equal(one, other):
                raise UserError(
                    f"the tied embedding differs between the first and the last pipeline stage: files {first.path}, "
                    f"{last.path}; training went wrong, and an average would hide it"
                )


def _records(root: Path, files: Iterable[Path]) -> Mapping[str, FileRecord]:
    """What an own manifest says of the files; nothing where Megatron wrote them, beside others of ours or alone."""
    manifest = read_manifest(root)
    if manifest is None or manifest.format != MEGATRON:
        return {}
    known = all(file.relative_to(root).as_posix() in manifest.files for file in files)
    return manifest.files if known else {}


def _identity(folder: Path, files: Sequence[Path], tokenizer: Path | None) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size} {torch_file_fingerprint(path)}\n".encode())
    if tokenizer is not None:
        for name in _TOKENIZER:
            digest.update((tokenizer / name).read_bytes())
    return digest.hexdigest()
