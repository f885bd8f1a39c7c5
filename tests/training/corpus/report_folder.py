"""A small corpus folder as a build leaves it, of three datasets, with hostile texts, for tests of the report."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from foundation.files import write_bytes, write_json, write_text
from foundation.formats import TOKENS
from foundation.manifest import write_manifest
from training.corpus.documents import DOCUMENTS, DROPPED, RAW
from training.corpus.parquet import write_parquet
from training.corpus.shard_work import commit, summarise
from training.corpus.stage import Outcome, Shard

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;"
DATASETS = ("books", "web", "news")
# Documents of each dataset behind each stage.
LEFT = {
    "sources": (10, 60, 30),
    "extract": (10, 50, 30),
    "clean": (10, 35, 28),
    "quality": (10, 20, 28),
    "deduplicate": (10, 15, 20),
    "decontaminate": (9, 15, 20),
}
RULES = {"extract": "no text", "clean": HOSTILE, "quality": "by chance", "deduplicate": "duplicate"}
CUTS = {("decontaminate", "books"): {"cuts: boolq": 1, "documents cut": 1}}
# The smallest PNG: one grey pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
TOKENS_WRITTEN = (9_000, 15_000, 20_000)


def write_corpus(out: Path, *, upto: str = "blend") -> Path:
    """Write the folder; stages behind `upto` are not there."""
    out.mkdir(parents=True)
    configuration = {
        "datasets": [{"name": name} for name in DATASETS],
        "quality": {"positives": ["books"], "alpha": 3.0},
        "decontaminate": {"texts": "tasks.jsonl"},
    }
    write_text(out / "corpus.yaml", yaml.safe_dump(configuration))
    before = LEFT["sources"]
    for name, left in LEFT.items():
        write_stage(out / name, name, before, left)
        before = left
        if name == upto:
            return out
    assert upto in ("tokenise", "blend")
    for dataset, tokens in zip(DATASETS, TOKENS_WRITTEN, strict=True):
        splits = {"train": {"documents": 9, "tokens": tokens - 100}, "validation": {"documents": 1, "tokens": 100}}
        folder = out / "tokenise" / dataset
        folder.mkdir(parents=True)
        write_manifest(folder, TOKENS, {"vocab_size": 50257, "splits": splits}, [])
    planned = [
        {"name": dataset, "tokens": tokens - 100, "share": tokens / sum(TOKENS_WRITTEN), "epochs": 1.5}
        for dataset, tokens in zip(DATASETS, TOKENS_WRITTEN, strict=True)
    ]
    write_json(out / "blend" / "plan.json", {"train_tokens": 66_000, "datasets": planned, "left_out": []})
    return out


def text_of(dataset: str, number: int) -> str:
    """A document's text: `web` is hostile, and all are too long to be shown whole."""
    begin = f"{HOSTILE} " if dataset == "web" else ""
    return f"{begin}Document {number} of {dataset}. " + f"Sentence {number} is about {dataset}. " * 80


def write_stage(folder: Path, name: str, came: Sequence[int], left: Sequence[int]) -> None:
    """A stage's folder, each dataset in two shards."""
    for dataset, before, after in zip(DATASETS, came, left, strict=True):
        for half in range(2):
            numbers = range(half, before, 2)
            kept = [_document(dataset, number, raw=name == "sources") for number in numbers if number < after]
            dropped = [_dropped(name, dataset, number) for number in numbers if number >= after]
            schema = RAW if name == "sources" else DOCUMENTS
            rule = RULES.get(name, "other")
            outcome = Outcome(
                pa.Table.from_pylist(kept, schema),
                pa.Table.from_pylist(dropped, DROPPED),
                {"kept": len(kept)}
                | ({f"rule: {rule}": len(dropped)} if dropped else {})
                | CUTS.get((name, dataset), {}),
                _side(name, dataset, half, kept, dropped),
            )
            shard = Shard(dataset, f"{half:05d}", Path())
            commit(folder, shard, outcome, key="k", documents_in=len(numbers), bytes_in=100, schema=schema)
    write_tables(folder, name)
    write_json(folder / "summary.json", {"stage": name, "datasets": summarise(folder)})
    write_json(folder / "times.json", {"seconds": 1.5})
    write_manifest(folder, "mtnlg-corpus-stage", {"stage": name}, [])


def write_tables(folder: Path, name: str) -> None:
    """What deduplication and the classifier's training leave for the report."""
    scratch = folder / "scratch"
    if name == "deduplicate":
        write_parquet(pa.table({"size": [2, 3, 9, 40], "clusters": [5, 2, 1, 1]}), scratch / "sizes.parquet")
        pairs = {"kept_dataset": ["books", "web"], "dataset": ["news", "news"], "rule": ["near duplicate"] * 2}
        write_parquet(pa.table({**pairs, "documents": [6, 2]}), scratch / "dataset_pairs.parquet")
        texts = {"kept_text": [f"One {HOSTILE} three."], "text": [f"One {HOSTILE} four."]}
        example = {"kept_id": ["books/1"], "id": [f"news/{HOSTILE}"], "similarity": [0.875], **texts}
        write_parquet(pa.table(example), scratch / "examples.parquet")
        write_json(scratch / "found.json", {"clusters": 9})
    if name == "quality":
        (scratch / "classifier").mkdir(parents=True)
        write_bytes(scratch / "classifier" / "precision_recall.png", PICTURE)
        about = {"examples": 20, "held_out": {"documents": 4, "accuracy": 0.75, "average_precision": 0.8}}
        write_manifest(scratch / "classifier", "mtnlg-quality-classifier", about, [])


def _side(
    stage: str, dataset: str, half: int, kept: list[dict[str, Any]], dropped: list[Mapping[str, Any]]
) -> dict[str, pa.Table]:
    if stage == "quality" and dataset == "web":
        scores = [0.95] * len(kept) + [0.05] * len(dropped)
        whether = [True] * len(kept) + [False] * len(dropped)
        ids = [row["id"] for row in (*kept, *dropped)]
        return {"scores": pa.table({"id": ids, "score": pa.array(scores, pa.float32()), "kept": whether})}
    if stage == "decontaminate" and dataset == "books" and half == 1:
        removed = f"Before it. {HOSTILE} is in a task. After it."
        cut = {"id": "books/9", "task": "boolq", "matched": f"{HOSTILE} is in a task", "removed": removed, "start": 5}
        return {"cuts": pa.Table.from_pylist([cut])}
    return {}


def _document(dataset: str, number: int, *, raw: bool) -> dict[str, Any]:
    text = text_of(dataset, number)
    row: dict[str, Any] = {"id": f"{dataset}/{number}", "source": "a", "url": None, "date": None, "text": text}
    if raw and dataset == "web":
        row |= {"html": f"<html><p>{text}</p>".encode(), "text": None}
    return row


def _dropped(stage: str, dataset: str, number: int) -> Mapping[str, Any]:
    rule = RULES.get(stage, "other")
    return {"id": f"{dataset}/{number}", "rule": rule, "detail": f"because {HOSTILE}", "text": text_of(dataset, number)}
