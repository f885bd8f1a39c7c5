"""Text to token indexes: `mtnlg data prepare`."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import building_folder, sha256_file
from foundation.formats import TOKENS
from foundation.manifest import Manifest, read_manifest, write_manifest
from foundation.tokenizer import END_OF_TEXT, TokenizerFiles, find_tokenizer_files, load_tokenizer
from training.data.megatron_index import indexed_dataset
from training.data.sources import Source, open_source

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
    megatron = indexed_dataset()
    tokenizer = load_tokenizer(files)
    vocab_size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id(END_OF_TEXT)
    builders = {
        split: megatron.IndexedDatasetBuilder(
            str(folder / f"{split}.bin"), dtype=megatron.DType.optimal_dtype(vocab_size)
        )
        for split in SPLITS
    }
    counts = {split: {"documents": 0, "tokens": 0} for split in SPLITS}
    texts = (text for source in sources for text in source.documents() if text.strip())
    with _progress() as progress:
        task = progress.add_task("tokenising", total=max_documents, tokens=0)
        for number, tokens in enumerate(_tokenise(tokenizer, islice(texts, max_documents))):
            split = "validation" if _held_out(number, validation_percent, seed) else "train"
            builders[split].add_document([*tokens, end], [len(tokens) + 1])
            counts[split]["documents"] += 1
            counts[split]["tokens"] += len(tokens) + 1
            progress.update(task, advance=1, tokens=sum(count["tokens"] for count in counts.values()))
    if counts["train"]["tokens"] == 0:
        raise UserError(f"no text in {', '.join(source.name for source in sources)}")
    for split, builder in builders.items():
        builder.finalize(str(folder / f"{split}.idx"))
    (folder / TOKENIZER_FOLDER).mkdir()
    shutil.copyfile(files.vocab, folder / TOKENIZER_FOLDER / "vocab.json")
    shutil.copyfile(files.merges, folder / TOKENIZER_FOLDER / "merges.txt")
    return counts, vocab_size


def _tokenise(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, _BATCH_DOCUMENTS)):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


def _held_out(number: int, percent: float, seed: int) -> bool:
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < percent / 100.0


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
