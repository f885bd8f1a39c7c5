"""A Hugging Face folder with a GPT-2 as a source: config.json, safetensors or pytorch_model.bin, whole or in shards.

Names and [in, out] matrices are those of transformers' GPT2LMHeadModel, with or without the `transformer.` before them
(https://github.com/huggingface/transformers/blob/main/src/transformers/models/gpt2/modeling_gpt2.py).
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from conversion.hf import PREFIX
from conversion.placement import place
from conversion.safetensors_file import read_header
from conversion.source import WEIGHT, Source
from conversion.stored import Extent, StoredSlice
from foundation.errors import UserError
from foundation.files import read_json, sha256_file
from foundation.formats import HF
from foundation.manifest import MANIFEST, Manifest, check_manifest, read_manifest
from foundation.tokenizer import END_OF_TEXT
from training.model.config import ModelConfig
from training.model.tensors import TensorSpec, tensor_table
from training.parallel.layout import Layout

CONFIG = "config.json"
# In the order in which transformers looks for them, each followed by its index of shards.
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("vocab.json", "merges.txt")

# Our field: GPT2Config's key and what it means when absent.
_SIZES: Mapping[str, tuple[str, float]] = {
    "num_layers": ("n_layer", 12),
    "hidden_size": ("n_embd", 768),
    "num_attention_heads": ("n_head", 12),
    "sequence_length": ("n_positions", 1024),
    "vocab_size": ("vocab_size", 50257),
    "layernorm_epsilon": ("layer_norm_epsilon", 1e-5),
}
# GPT2Config's switches, the values that this project's GPT has; all have such a value when absent.
_SWITCHES: Mapping[str, tuple[object, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # two names of the tanh form
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}

_EMBEDDING, _HEAD = "wte.weight", "lm_head.weight"
# The causal mask, which older versions of transformers stored with the weights.
_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class _Stored:
    """A tensor of a weight file under its own name. `column_major`: in memory its columns follow each other."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    column_major: bool = False

    def slice(self, spec: TensorSpec, model: ModelConfig) -> StoredSlice:
        """The same as the only slice of the table's tensor `spec`."""
        shape = self.shape[::-1] if self.column_major else self.shape
        placement = place(spec, model, 0, 1, vocabulary=model.vocab_size)  # nobody pads here
        extents = (Extent(self.file, self.offset, 0, torch.Size(shape).numel()),)
        return StoredSlice(shape, self.dtype, placement, extents, spec.hf_transposed != self.column_major)


def read_hf_folder(folder: Path) -> Source:
    """The GPT-2 in `folder`; headers and small files are read, no tensor but a stored copy of the tied embedding.

    Raises UserError when it is another architecture, or files or tensors are missing, unknown or of other shapes.
    """
    manifest = read_manifest(folder)
    model = _read_config(folder / CONFIG) if manifest is None else _read_own(folder, manifest)
    stored = _read_stored(folder)
    tensors = _by_table(folder, model, stored)
    tokenizer = _find_tokenizer(folder)
    return Source(
        format=HF,
        path=folder,
        identity=_identity(folder, stored, tokenizer) if manifest is None else sha256_file(folder / MANIFEST),
        model=model,
        dtype=Counter(pieces[0].dtype for pieces in tensors.values()).most_common(1)[0][0],
        layout=Layout(),
        tensors=tensors,
        step=None if manifest is None else manifest.about.get("step"),
        tokenizer=tokenizer,
        files={} if manifest is None else dict(manifest.files),
    )


def _read_own(folder: Path, manifest: Manifest) -> ModelConfig:
    """The model of an output of `mtnlg convert`; its manifest says what config.json has no key for.

    Raises UserError when it is another format, or a small file is not as it was written.
    """
    if manifest.format != HF:
        raise UserError(f"{folder} holds {manifest.format}, not a Hugging Face model; give what it was made of")
    small = {name: record for name, record in manifest.files.items() if name.endswith(".json")}
    if problems := check_manifest(folder, manifest.model_copy(update={"files": small})):
        raise UserError(f"damaged checkpoint: {problems[0]}; use another checkpoint or copy it again")
    try:
        return ModelConfig.model_validate(manifest.about.get("model"))
    except ValidationError:
        raise UserError(f"{folder / MANIFEST} does not describe a model; convert its source again") from None


def _read_config(path: Path) -> ModelConfig:
    config = read_json(path)
    if not isinstance(config, dict) or config.get("model_type") != "gpt2":
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise UserError(f"{path}: model_type is {kind!r}; only gpt2 can be converted")
    for key, values in _SWITCHES.items():
        if key in config and config[key] not in values:
            can = " or ".join(map(repr, values))
            raise UserError(f"{path}: {key} is {config[key]!r}, but this project's GPT has only {can}")
    try:
        sizes = {name: config.get(key, default) for name, (key, default) in _SIZES.items()}
        model = ModelConfig.model_validate(sizes)
    except ValidationError as error:
        problem = error.errors()[0]
        key = _SIZES[str(problem["loc"][0])][0] + ": " if problem["loc"] else ""
        raise UserError(f"{path}: {key}{problem['msg']}; this is no GPT-2 that transformers would load") from None
    if config.get("n_inner") not in (None, model.ffn_hidden_size):
        raise UserError(
            f"{path}: n_inner is {config['n_inner']}, but this project's GPT has only 4 n_embd, {model.ffn_hidden_size}"
        )
    return model


def _read_stored(folder: Path) -> list[_Stored]:
    """Every tensor of every weight file."""
    for name in _WEIGHT_FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _read_file(folder / name)
        if index.is_file():
            return _read_shards(index)
    raise UserError(f"{folder} has {CONFIG} but no weights; expected {' or '.join(_WEIGHT_FILES)}, or an index of one")


def _read_shards(index: Path) -> list[_Stored]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise UserError(f"{index} has no weight_map from tensors to files; copy it again")
    stored: list[_Stored] = []
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:
            raise UserError(f"{index} names {name}, which is not a file beside it; use the index that was saved")
        if not (index.parent / name).is_file():
            raise UserError(f"{index} names {name}, which is missing; copy or download it again")
        held = _read_file(index.parent / name)
        absent = {key for key, file in weight_map.items() if file == name} - {tensor.key for tensor in held}
        if absent:
            raise UserError(f"{index} promises {_some(absent)} in {name}, which does not hold it; copy both again")
        stored += held
    return stored


def _read_file(path: Path) -> list[_Stored]:
    if path.suffix == ".bin":
        return _read_pickled(path)
    _, entries = read_header(path)
    return [_Stored(path, entry.key, entry.shape, entry.dtype, entry.offset) for entry in entries.values()]


def _read_pickled(path: Path) -> list[_Stored]:
    from conversion.torch_zip import TorchTensor, read_torch_file

    content = read_torch_file(path)
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds no tensors by name; save the model's state dict")
    stored = []
    for key, value in content.items():
        if not (isinstance(key, str) and isinstance(value, TorchTensor)):
            raise UserError(f"{path}: {key} is not a tensor; save the model's state dict alone")
        turned = value._replace(shape=value.shape[::-1], strides=value.strides[::-1])
        if not (value.contiguous or turned.contiguous):
            raise UserError(f"{path}: tensor {key} is stored with gaps; save it again after .contiguous()")
        stored.append(_Stored(value.file, key, value.shape, value.dtype, value.offset, not value.contiguous))
    return stored


def _by_table(
    folder: Path, model: ModelConfig, stored: Iterable[_Stored]
) -> dict[tuple[str, str], tuple[StoredSlice, ...]]:
    """The slices by the table's names, after every check of names and shapes."""
    found: dict[str, _Stored] = {}
    for tensor in stored:
        name = tensor.key.removeprefix(PREFIX)
        if _BUFFER.fullmatch(name):
            continue
        if name in found:
            other = found[name]
            raise UserError(f"{tensor.file}: tensor {tensor.key} is also {other.key} of {other.file.name}; keep one")
        found[name] = tensor
    head = found.pop(_HEAD, None)
    if head is not None:
        # Where tied tensors are stored once, it can be under either name.
        found.setdefault(_EMBEDDING, head)
    table = {spec.hf_name: spec for spec in tensor_table(model)}
    if missing := table.keys() - found.keys():
        raise UserError(f"{folder} lacks {_some(missing)}, which a GPT-2 of its {CONFIG} has; copy it again")
    if unknown := found.keys() - table.keys():
        file = found[min(unknown)].file
        raise UserError(f"{file} holds {_some(unknown)}, which no GPT-2 of its {CONFIG} has; convert the plain model")
    for name, spec in table.items():
        _check_tensor(found[name], spec)
    if head is not None:
        _check_tied(head, found[_EMBEDDING], table[_EMBEDDING], model)
    return {(spec.name, WEIGHT): (found[name].slice(spec, model),) for name, spec in table.items()}


def _check_tensor(tensor: _Stored, spec: TensorSpec) -> None:
    shape = spec.shape[::-1] if spec.hf_transposed else spec.shape
    if tensor.shape != shape:
        raise UserError(
            f"{tensor.file}: tensor {tensor.key} has shape {tensor.shape} where {CONFIG} says {shape}; "
            "the two are not of one model"
        )
    if tensor.dtype not in _FLOATS:
        raise UserError(
            f"{tensor.file}: tensor {tensor.key} holds {tensor.dtype}; convert a model that is not quantised"
        )


def _check_tied(head: _Stored, embedding: _Stored, spec: TensorSpec, model: ModelConfig) -> None:
    """Raise UserError unless the head is the embedding, as one tensor or as two that are equal to the bit."""
    if head == embedding:
        return
    _check_tensor(head, spec)
    with head.slice(spec, model).open() as ours, embedding.slice(spec, model).open() as theirs:
        # Bytes, since a NaN does not equal itself.
        same = torch.equal(*(tensor.contiguous().view(torch.uint8) for tensor in (ours, theirs)))
    if head.dtype != embedding.dtype or not same:
        raise UserError(
            f"{head.file}: {head.key} differs from {embedding.key}, but this project's GPT has one tensor for both; "
            "a model with a head of its own cannot be converted"
        )


def _find_tokenizer(folder: Path) -> Path | None:
    """The folder itself where it holds GPT-2's two files; a tokenizer.json alone is not read."""
    vocab, merges = (folder / name for name in _TOKENIZER_FILES)
    if not (vocab.is_file() and merges.is_file()):
        return None
    known = read_json(vocab)
    added = folder / "added_tokens.json"
    beyond = set(read_json(added)) - set(known) if added.is_file() else set()
    advice = f"move {' and '.join(_TOKENIZER_FILES)} away to convert without a tokenizer"
    if END_OF_TEXT not in known:
        raise UserError(f"{vocab} has no {END_OF_TEXT}, which separates documents here; {advice}")
    if beyond:
        raise UserError(f"{added} has {_some(beyond)}, which {vocab.name} has not, so it would be lost; {advice}")
    return folder


def _identity(folder: Path, stored: Iterable[_Stored], tokenizer: Path | None) -> str:
    """A name for contents that no manifest describes.

    The files' time of change is part of it, since hashing the weights would mean reading them all once more.
    """
    tensors = [[t.file.name, t.key, list(t.shape), str(t.dtype), t.offset, t.column_major] for t in stored]
    files = {tensor.file for tensor in stored}
    states = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
    small = [CONFIG, *(_TOKENIZER_FILES if tokenizer is not None else ())]
    hashes = {name: sha256_file(folder / name) for name in small}
    content: list[Any] = [hashes, states, tensors]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def _some(names: Iterable[str]) -> str:
    """The first three by name, and how many more."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
