"""Text to token indexes: `mtnlg data prepare`."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import building_folder, sha256_file
from foundation.formats import TOKENS
from foundation.manifest import Manifest, read_manifest, write_manifest
from foundation.tokenizer import TokenizerFiles, find_tokenizer_files
from training.data.encoder import Encoder, TokenIds, open_encoder
from training.data.sources import Source, open_source
from training.data.token_writer import TokenWriter, token_dtype

SPLITS = ("train", "validation")
TOKENIZER_FOLDER = "tokenizer"
_BATCH_DOCUMENTS = 256


def prepare(
    out: Path,
    data: Sequence[str],
    *,
    tokenizer: Path | None = None,
    validation_percent: float = 2.0,
    seed: int = 1234,
    max_documents: int | None = None,
) -> Manifest:
    """Write `out/train.{bin,idx}`, `out/validation.{bin,idx}`, the tokenizer's files and a manifest.

    Each document ends in `<|endoftext|>` and is held out with probability `validation_percent`, decided
    by the seed and its number alone. A finished `out` made from the same input is left as it is.
    Raises UserError when a source cannot be read or holds no text.
    """
    sources = [open_source(name) for name in data]
    files = find_tokenizer_files(tokenizer)
    inputs = {
        "sources": [_identity(source) for source in sources],
        "tokenizer": [sha256_file(files.vocab), sha256_file(files.merges)],
        "validation_percent": validation_percent,
        "seed": seed,
        "max_documents": max_documents,
    }
    existing = read_manifest(out)
    if existing is not None and existing.about.get("inputs") == inputs and all(source.files for source in sources):
        error_console().print(f"{out} is already prepared from this data")
        return existing
    with building_folder(out) as folder:
        counts, vocab_size = _write_splits(folder, sources, files, validation_percent, seed, max_documents)
        about = {"vocab_size": vocab_size, "splits": counts, "inputs": inputs}
        manifest = write_manifest(folder, TOKENS, about, [p for p in folder.rglob("*") if p.is_file()])
    for split, count in counts.items():
        error_console().print(f"{out / split}: {count['documents']:,} documents, {count['tokens']:,} tokens")
    return manifest


def _write_splits(
    folder: Path,
    sources: Sequence[Source],
    files: TokenizerFiles,
    validation_percent: float,
    seed: int,
    max_documents: int | None,
) -> tuple[dict[str, dict[str, int]], int]:
    encoder = open_encoder(files)
    texts = (text for source in sources for text in source.documents() if text.strip())
    with contextlib.ExitStack() as open_writers, _progress() as progress:
        writers = {
            split: open_writers.enter_context(TokenWriter(folder / split, token_dtype(encoder.vocab_size)))
            for split in SPLITS
        }
        task = progress.add_task("tokenising", total=max_documents, tokens=0)
        for number, tokens in enumerate(_tokenise(encoder, islice(texts, max_documents))):
            split = "validation" if held_out(str(number), validation_percent, seed) else "train"
            writers[split].add([tokens])
            progress.update(task, advance=1, tokens=sum(writer.tokens for writer in writers.values()))
    counts = {split: {"documents": writer.documents, "tokens": writer.tokens} for split, writer in writers.items()}
    if counts["train"]["tokens"] == 0:
        raise UserError(f"no text in {', '.join(source.name for source in sources)}")
    copy_tokenizer(files, folder)
    return counts, encoder.vocab_size


def copy_tokenizer(files: TokenizerFiles, folder: Path) -> None:
    """Put the tokenizer's two files into a folder of tokens, under the names that readers expect."""
    (folder / TOKENIZER_FOLDER).mkdir(exist_ok=True)
    shutil.copyfile(files.vocab, folder / TOKENIZER_FOLDER / "vocab.json")
    shutil.copyfile(files.merges, folder / TOKENIZER_FOLDER / "merges.txt")


def held_out(key: str, percent: float, seed: int) -> bool:
    """Whether a document is one for validation: decided by the seed and what it is known by."""
    digest = hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < percent / 100.0


def _tokenise(encoder: Encoder, texts: Iterable[str]) -> Iterator[TokenIds]:
    iterator, threads = iter(texts), len(os.sched_getaffinity(0))
    while batch := list(islice(iterator, _BATCH_DOCUMENTS)):
        for tokens in encoder.encode_batch(batch, threads):
            yield np.append(tokens, np.uint32(encoder.end))


def _identity(source: Source) -> dict[str, Any]:
    # Names only where a file is, not its place: moving a corpus does not change what it holds.
    return {"name": source.name, "files": [sha256_file(path) for path in source.files]}


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TextColumn("documents, {task.fields[tokens]:,} tokens"),
        TimeElapsedColumn(),
        console=error_console(),
    )
