"""What curation is worth: a small model trained on the curated corpus beside one trained on the same, uncurated.

Both read as many tokens of the same pages, news, reviews, abstracts and papers, each dataset by its own size. Uncurated
is every document, and all of a page's text. Held out is clean text of which neither has seen a document: encyclopedia
articles, speeches, and about a fifth of the books, the others of which are what the classifier takes for good text.
"""

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.corpus_build import CORPUS, CRAWLED, MTNLG, build, dataset, described, run, written_tokens
from foundation.files import write_text
from foundation.manifest import MANIFEST
from training.metrics import read_metrics

TOKENS = 1_638_400
_CONFIG = Path(__file__).resolve().parents[1] / "configs" / "train" / "demo.yaml"
_CLEAN = ("wikipedia_demo.jsonl.gz", "speeches.jsonl.gz")
_SOURCES = {"papers": "papers.jsonl.gz", "abstracts": "abstracts.jsonl.gz", **CRAWLED}
_BOOKS = CORPUS / "books.jsonl.gz"
_EVERY_BOOK = 5
VALIDATION_SAMPLES = 128


def measure(folder: Path, texts: Path, tokens: int = TOKENS, samples: int = VALIDATION_SAMPLES) -> dict[str, Any]:
    """Build both corpora, train on both, and read the losses on the held-out text."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out, good = _held_out(folder)
    build_config = {"curated": _curated(folder / "curated", good, texts), "uncurated": _uncurated(folder / "uncurated")}
    found: dict[str, Any] = {"train_tokens": tokens, "validation_samples": samples}
    for name, config in build_config.items():
        build(config)
        out = Path(config["out"])
        blend = _with_held_out(out, held_out, folder / f"{name}-data")
        losses = _train(folder / f"{name}-run", blend, tokens, samples)
        found[name] = {"tokens": written_tokens(out), "validation_losses": losses, "stages": described(out)}
    last = {name: found[name]["validation_losses"][-1]["loss"] for name in build_config}
    found["validation_loss"] = last
    found["curated_is_lower_by"] = last["uncurated"] - last["curated"]
    return found


def _held_out(folder: Path) -> tuple[Path, Path]:
    """Tokens of the held-out text, and a file of the other books, the classifier's positives."""
    held, good = folder / "held-out.jsonl", folder / "books.jsonl"
    with held.open("w", encoding="utf-8") as clean, good.open("w", encoding="utf-8") as others:
        for name in _CLEAN:
            clean.writelines(f"{json.dumps({'text': text})}\n" for text in _texts(CORPUS / name))
        for text in _texts(_BOOKS):
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            to = clean if int.from_bytes(digest, "big") % _EVERY_BOOK == 0 else others
            to.write(f"{json.dumps({'text': text})}\n")
    tokens = folder / "held-out"
    # Training wants both splits; the smaller one is what is validated on.
    run([*MTNLG, "data", "prepare", str(tokens), "--data", str(held), "--validation-percent", "50"])
    return tokens, good


def _curated(out: Path, good: Path, texts: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "shard_megabytes": 4,
        "datasets": [dataset(name, CORPUS / file) for name, file in _SOURCES.items()],
        "quality": {"positives": [str(good)]},
        "decontaminate": {"texts": str(texts)},
    }


def _uncurated(out: Path) -> dict[str, Any]:
    """The same files, pages as all of their text; every stage passed over."""
    plain = out.with_name(f"{out.name}-sources")
    plain.mkdir()
    datasets = []
    for name, file in _SOURCES.items():
        path = plain / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as handle:
            handle.writelines(f"{json.dumps({'text': text})}\n" for text in _all_text(CORPUS / file))
        datasets.append(dataset(name, path, skip=["clean", "quality", "deduplicate", "decontaminate"]))
    return {"out": str(out), "shard_megabytes": 4, "datasets": datasets}


def _all_text(path: Path) -> Iterator[str]:
    from resiliparse.extract.html2text import extract_plain_text

    for record in _records(path):
        yield record["text"] if "text" in record else str(extract_plain_text(record["html"], main_content=False))


def _with_held_out(out: Path, held_out: Path, folder: Path) -> Path:
    """The blend of `out` with the held-out text in the place of every dataset's own validation split."""
    blend = yaml.safe_load((out / "blend" / "blend.yaml").read_text(encoding="utf-8"))
    for source in blend["blend"]:
        name = Path(source["path"]).name
        made = folder / name
        shutil.copytree(out / "tokenise" / name / "tokenizer", made / "tokenizer")
        for kind in ("bin", "idx"):
            (made / f"train.{kind}").symlink_to((out / "tokenise" / name / f"train.{kind}").absolute())
            (made / f"validation.{kind}").symlink_to((held_out / f"validation.{kind}").absolute())
        shutil.copyfile(out / "tokenise" / name / MANIFEST, made / MANIFEST)
        source["path"] = str(made)
    write_text(folder / "blend.yaml", yaml.safe_dump(blend))
    return folder / "blend.yaml"


def _train(out: Path, blend: Path, tokens: int, samples: int) -> list[dict[str, float]]:
    """The demo's model on one process; validation losses by tokens."""
    settings = {
        "data": blend,
        "out": out,
        "layout.tensor_parallel_size": 1,
        "layout.pipeline_parallel_size": 1,
        "training.train_tokens": tokens,
        "training.micro_batch_size": 16,
        "training.validation_samples": samples,
        "training.validation_interval": 100,
        "optimizer.decay_tokens": tokens,
        "checkpoint.interval": 10**6,
    }
    run([*MTNLG, "train", str(_CONFIG), *(f"{key}={value}" for key, value in settings.items())])
    return [
        {"tokens": line["tokens"], "loss": line["validation_loss"]}
        for line in read_metrics(out)
        if "validation_loss" in line
    ]


def _texts(path: Path) -> Iterator[str]:
    return (record["text"] for record in _records(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
