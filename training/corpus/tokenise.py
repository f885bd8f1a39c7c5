"""Stage 7: documents to GPT-2's tokens in Megatron's .bin and .idx, a folder a dataset, with a validation split."""

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from foundation.config import StrictModel
from foundation.files import fsync_folder, read_json, sha256_file, write_bytes, write_json
from foundation.formats import TOKENS
from foundation.manifest import read_manifest, write_manifest
from foundation.tokenizer import TokenizerFiles, find_tokenizer_files
from training.corpus.arrays import write_array
from training.corpus.parquet import content_bytes, read_parquet
from training.corpus.stage import Shard, Stage, Work, shard_item, shard_of
from training.data.encoder import Encoder, TokenIds, open_encoder
from training.data.prepare import SPLITS, TOKENIZER_FOLDER, copy_tokenizer, held_out
from training.data.token_writer import TokenWriter, token_dtype

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

_BATCH_DOCUMENTS = 256


class TokeniseConfig(StrictModel):
    """Which BPE, and how much is held out."""

    tokenizer: Path | None = Field(
        default=None, description="folder with GPT-2's vocab.json and merges.txt; none: the Hub's, else a package's"
    )
    validation_percent: float = Field(
        default=2.0, ge=0, le=50, description="documents held out, by a hash of their ids"
    )


class Tokenise(Stage):
    """Tokenises shard by shard into `scratch/parts`, then joins each dataset's parts in the shards' order."""

    name = "tokenise"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: TokeniseConfig = config.tokenise
        self._seed: int = config.seed

    def identity(self) -> dict[str, Any]:
        """The settings and the tokenizer's SHA-256. Raises UserError when there is no tokenizer to be had."""
        files = find_tokenizer_files(self._config.tokenizer)
        return {
            "tokenizer": [sha256_file(files.vocab), sha256_file(files.merges)],
            "validation_percent": self._config.validation_percent,
            "seed": self._seed,
        }

    def run(self, work: Work) -> None:
        """Tokenise the shards that have no parts yet, and join the datasets that have no manifest yet."""
        scratch = work.folder / "scratch"
        parts, files = scratch / "parts", self._tokenizer(scratch)
        make = MakeParts(files, self._config.validation_percent, self._seed, parts)
        datasets = {name: list(shards) for name, shards in groupby(work.shards, lambda shard: shard.dataset)}
        unfinished = [name for name in datasets if read_manifest(work.folder / name) is None]
        pending = [s for name in unfinished for s in datasets[name] if not _record_path(parts, s).is_file()]
        total = sum(shard.path.stat().st_size for shard in work.shards)
        done = total - sum(shard.path.stat().st_size for shard in pending)
        work.report("Parquet bytes", done, total)
        sizes = sorted(((shard.path.stat().st_size, shard) for shard in pending), key=lambda pair: -pair[0])
        for answer in work.engine.map(make, [shard_item(shard) for _, shard in sizes]):
            done += int(json.loads(answer))
            work.report("Parquet bytes", done, total)
        for name in unfinished:
            _join(work.folder / name, datasets[name], parts, files, self.identity())
            shutil.rmtree(parts / name)
        shutil.rmtree(parts, ignore_errors=True)
        write_json(work.folder / "summary.json", {"stage": self.name, "datasets": _summary(work.folder, datasets)})

    def _tokenizer(self, scratch: Path) -> TokenizerFiles:
        """The tokenizer's files beside the work, where workers on other machines see them too."""
        scratch.mkdir(parents=True, exist_ok=True)
        copy_tokenizer(find_tokenizer_files(self._config.tokenizer), scratch)
        return find_tokenizer_files(scratch / TOKENIZER_FOLDER)


@dataclass(frozen=True)
class MakeParts:
    """What worker processes do: the tokens of the shard that an item (JSON) names, by split, and last a record."""

    files: TokenizerFiles
    validation_percent: float
    seed: int
    parts: Path

    def __call__(self, item: str) -> str:
        """The size of the shard's file, as JSON."""
        shard = shard_of(item)
        table = read_parquet(shard.path, ["id", "text"])
        encoder = _encoder(self.files)
        found: dict[str, list[TokenIds]] = {split: [] for split in SPLITS}
        for batch in table.to_batches(max_chunksize=_BATCH_DOCUMENTS):
            identities, texts = (batch.column(name).to_pylist() for name in ("id", "text"))
            for identity, tokens in zip(identities, encoder.encode_batch(texts), strict=True):
                held = held_out(identity, self.validation_percent, self.seed)
                found[SPLITS[held]].append(np.append(tokens, np.uint32(encoder.end)))
        dtype = token_dtype(encoder.vocab_size)
        for split, documents in found.items():
            tokens_path, lengths_path = _part_paths(self.parts, shard, split)
            joined = np.concatenate([np.empty(0, dtype=np.uint32), *documents])
            write_bytes(tokens_path, joined.astype(dtype).tobytes())
            lengths = np.array([len(document) for document in documents], dtype=np.int32)
            write_array(lengths_path, lengths)
        record = {"documents": len(table), "bytes": content_bytes(table)}
        write_json(_record_path(self.parts, shard), record)
        return json.dumps(shard.path.stat().st_size)


@cache
def _encoder(files: TokenizerFiles) -> Encoder:
    """Opened once in a process."""
    return open_encoder(files)


def _join(folder: Path, shards: Sequence[Shard], parts: Path, files: TokenizerFiles, identity: dict[str, Any]) -> None:
    """Write a dataset's folder, as `mtnlg data prepare` would; its manifest commits it."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = _encoder(files).vocab_size
    with contextlib.ExitStack() as writers_open:
        writers = {
            split: writers_open.enter_context(TokenWriter(folder / split, token_dtype(vocab_size))) for split in SPLITS
        }
        for shard in shards:
            for split, writer in writers.items():
                tokens_path, lengths_path = _part_paths(parts, shard, split)
                writer.append(tokens_path, np.load(lengths_path))
    copy_tokenizer(files, folder)
    fsync_folder(folder)
    records = [read_json(_record_path(parts, shard)) for shard in shards]
    about = {
        "vocab_size": vocab_size,
        "splits": {split: {"documents": w.documents, "tokens": w.tokens} for split, w in writers.items()},
        "inputs": {
            "shards": len(shards),
            "documents": sum(record["documents"] for record in records),
            "bytes": sum(record["bytes"] for record in records),
            **identity,
        },
    }
    written = [folder / f"{split}.{suffix}" for split in SPLITS for suffix in ("bin", "idx")]
    write_manifest(folder, TOKENS, about, [*written, *sorted((folder / TOKENIZER_FOLDER).iterdir())])


def _summary(folder: Path, datasets: dict[str, list[Shard]]) -> dict[str, Any]:
    """Counts by dataset, in the form of the other stages' summaries."""
    found = {}
    for name in sorted(datasets):
        manifest = read_manifest(folder / name)
        if manifest is None:
            raise ValueError(f"{folder / name} has no manifest")
        inputs, splits = manifest.about["inputs"], manifest.about["splits"]
        found[name] = {
            "shards": inputs["shards"],
            "documents_in": inputs["documents"],
            "documents_out": sum(split["documents"] for split in splits.values()),
            "dropped": 0,
            "bytes_in": inputs["bytes"],
            "bytes_out": sum(manifest.files[f"{split}.bin"].size for split in SPLITS),
            "counts": {f"{split} {unit}": splits[split][unit] for split in SPLITS for unit in ("documents", "tokens")},
        }
    return found


def _part_paths(parts: Path, shard: Shard, split: str) -> tuple[Path, Path]:
    """A shard's tokens, and their documents' lengths."""
    folder = parts / shard.dataset
    return folder / f"{shard.name}.{split}.bin", folder / f"{shard.name}.{split}.npy"


def _record_path(parts: Path, shard: Shard) -> Path:
    return parts / shard.dataset / f"{shard.name}.json"
