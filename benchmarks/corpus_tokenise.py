"""How fast documents become Megatron's token files, beside Hugging Face's tokenizers, whose ids are compared too.

Real text of several kinds lies in Parquet shards. The stage reads, tokenises, writes and joins them with two workers,
from its beginning to its end, start of the workers included. Hugging Face's tokenizers get the same texts in memory and
two threads, and write nothing. Every id that was written is then read by Megatron's own reader and compared.

    python -m benchmarks.corpus_tokenise    # two minutes; writes benchmarks/results/corpus_tokenise.json
"""

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import Bar, write_result
from foundation.tokenizer import find_tokenizer_files, load_tokenizer
from training.corpus.config import CorpusConfig
from training.corpus.documents import DOCUMENTS
from training.corpus.engine import DaftEngine
from training.corpus.parquet import read_parquet, write_parquet
from training.corpus.stage import Shard, Work
from training.corpus.tokenise import Tokenise
from training.data.megatron_index import indexed_dataset

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
WORKERS = 2
TOKENS_PER_SECOND = 2e6
_SHARD_BYTES = 8_000_000
_BATCH_DOCUMENTS = 256


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of the stage; the median counts")
    parser.add_argument("--quick", action="store_true", help="some files, one round, into another file")
    arguments = parser.parse_args()
    files = sorted(CORPUS.glob("*.jsonl.gz"))
    found = measure(files[:1], 1) if arguments.quick else measure(files, arguments.rounds)
    write_result("corpus_tokenise.quick" if arguments.quick else "corpus_tokenise", found, bars(found))


def bars(measured: dict[str, Any]) -> list[Bar]:
    """What the measurements are held to."""
    return [
        Bar("tokenising, two cores", measured["tokens_per_second"], "tokens/s", at_least=TOKENS_PER_SECOND),
        Bar("documents whose ids differ from Hugging Face's", measured["documents_that_differ"], "", at_most=0),
    ]


def measure(files: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Speeds of the stage and of Hugging Face's tokenizers on the texts of `files`, and how many documents differ."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = [shard for file in files for shard in _write_shards(file, folder / "input")]
        seconds = [_run(shards, files, folder / f"run-{number}") for number in range(rounds)]
        theirs, differ, documents, tokens = _compare(shards, folder / "run-0" / "tokenise")
    return {
        "files": [file.name for file in files],
        "documents": documents,
        "tokens": tokens,
        "workers": WORKERS,
        "seconds": seconds,
        "tokens_per_second": tokens / statistics.median(seconds),
        "hugging_face_seconds": theirs,
        "hugging_face_tokens_per_second": tokens / theirs,
        "documents_that_differ": differ,
        "versions": {package: version(package) for package in ("tiktoken", "tokenizers", "daft", "pyarrow")},
    }


def _write_shards(file: Path, folder: Path) -> Iterator[Shard]:
    """The documents of one file as a dataset."""
    dataset = file.name.partition(".")[0]
    rows: list[dict[str, Any]] = []
    size = number = shard_number = 0
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            text = json.loads(line)["text"]
            rows.append({"id": f"{dataset}/{number}", "source": file.name, "url": None, "date": None, "text": text})
            size += len(text)
            if size >= _SHARD_BYTES:
                yield _write_shard(rows, folder, dataset, shard_number)
                rows, size, shard_number = [], 0, shard_number + 1
    if rows:
        yield _write_shard(rows, folder, dataset, shard_number)


def _write_shard(rows: list[dict[str, Any]], folder: Path, dataset: str, number: int) -> Shard:
    shard = Shard(dataset, f"{number:05}", folder / dataset / f"{number:05}.parquet")
    write_parquet(pa.Table.from_pylist(rows, schema=DOCUMENTS), shard.path)
    return shard


def _run(shards: Sequence[Shard], files: Sequence[Path], out: Path) -> float:
    """Seconds of one run of the stage."""
    datasets = [{"name": file.name.partition(".")[0], "paths": [str(file)]} for file in files]
    settings = {"out": out, "datasets": datasets, "tokenise": {"validation_percent": 0}}
    stage = Tokenise(CorpusConfig.model_validate(settings))
    engine = DaftEngine(workers=WORKERS)
    started = time.perf_counter()
    stage.run(Work(shards, out / stage.name, engine, lambda what, done, total: None))
    return time.perf_counter() - started


def _compare(shards: Sequence[Shard], out: Path) -> tuple[float, int, int, int]:
    """Hugging Face's seconds; documents whose ids differ; documents and tokens (separators included) written."""
    os.environ["RAYON_NUM_THREADS"] = str(WORKERS)
    tokenizer = load_tokenizer(find_tokenizer_files())
    seconds, differ, documents, tokens = 0.0, 0, 0, 0
    for dataset in dict.fromkeys(shard.dataset for shard in shards):
        texts = [t for s in shards if s.dataset == dataset for t in read_parquet(s.path, ["text"])["text"].to_pylist()]
        written = indexed_dataset().IndexedDataset(str(out / dataset / "train"))
        differ += abs(len(written) - len(texts))
        for first in range(0, len(texts), _BATCH_DOCUMENTS):
            batch = texts[first : first + _BATCH_DOCUMENTS]
            started = time.perf_counter()
            ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
            seconds += time.perf_counter() - started
            differ += sum(
                not np.array_equal(written[number][:-1], of_text) for number, of_text in enumerate(ids, start=first)
            )
            tokens += sum(map(len, ids)) + len(ids)
        documents += len(texts)
    return seconds, differ, documents, tokens


if __name__ == "__main__":
    main()
