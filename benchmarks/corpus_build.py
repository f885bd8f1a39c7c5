"""The corpus of ../shared/corpus as configurations, and builds of it by the command line, timed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from foundation.files import read_json, sha256_file, write_text
from foundation.manifest import MANIFEST

SHARED = Path(__file__).resolve().parents[2] / "shared"
CORPUS = SHARED / "corpus"
WORKERS = 2
STAGES = ("sources", "extract", "clean", "quality", "deduplicate", "decontaminate", "tokenise", "blend")

# In their order of priority: what people chose or edited, then what is like a crawl. Of these the quality is scored.
CHOSEN = {
    "wikipedia": "wikipedia_demo.jsonl.gz",
    "wikitext": "wikitext2_valid_test.jsonl.gz",
    "books": "books.jsonl.gz",
    "shakespeare": "tinyshakespeare.jsonl.gz",
    "speeches": "speeches.jsonl.gz",
    "papers": "papers.jsonl.gz",
    "abstracts": "abstracts.jsonl.gz",
}
CRAWLED = {
    "news": "news.jsonl.gz",
    "reviews": "reviews.jsonl.gz",
    "c4": "web_c4_demo.jsonl.gz",
    "news-pages": "html/article_extraction_benchmark.jsonl.gz",
    "pages": "html/trafilatura_eval.jsonl.gz",
    "articles-2500": "near_duplicates/articles_2500.jsonl.gz",
    "articles-1000": "near_duplicates/articles_1000.jsonl.gz",
}
CODE = {"code": "code_python.jsonl.gz"}
POSITIVES = ("wikipedia", "books", "abstracts")


def dataset(name: str, path: Path, **settings: Any) -> dict[str, Any]:
    """A dataset of JSON Lines."""
    return {"name": name, "paths": [str(path)], "format": "jsonl", **settings}


def whole_corpus(out: Path, texts: Path | None) -> dict[str, Any]:
    """All of ../shared/corpus; `texts` are the tasks' to be taken out."""
    datasets = [dataset(name, CORPUS / file) for name, file in CHOSEN.items()]
    for one in datasets:
        if one["name"] not in POSITIVES:
            one["skip"] = ["quality"]
    datasets += [dataset(name, CORPUS / file) for name, file in CRAWLED.items()]
    datasets.append({"name": "warc", "paths": [str(CORPUS / "html" / "example.warc.gz")]})
    datasets += [dataset(name, CORPUS / file, skip=["clean", "quality"]) for name, file in CODE.items()]
    return {
        "out": str(out),
        "shard_megabytes": 4,
        "datasets": datasets,
        "quality": {"positives": list(POSITIVES)},
        "decontaminate": {"texts": str(texts) if texts else None},
    }


def command(config: Mapping[str, Any]) -> list[str]:
    """`mtnlg corpus build` of a configuration, which is written beside its `out`."""
    file = Path(f"{config['out']}.yaml")
    write_text(file, yaml.safe_dump(dict(config), sort_keys=False))
    return [*MTNLG, "corpus", "build", str(file), "--workers", str(WORKERS)]


# The command line of this very interpreter.
MTNLG = (sys.executable, "-m", "mtnlg")


def build(config: Mapping[str, Any], stages: Iterable[str] = ()) -> float:
    """Run the whole build, or some stages of it one by one; seconds, start of the interpreter included."""
    started = time.perf_counter()
    for more in [["--stage", stage] for stage in stages] or [[]]:
        run([*command(config), *more])
    return time.perf_counter() - started


def run(arguments: Sequence[str]) -> None:
    """Run a command, with two threads a process. Raises RuntimeError with what it said when it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(WORKERS)}
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {result.stderr[-2000:]}")


def write_task_texts(path: Path, tasks: str | None = None) -> Path:
    """The evaluation tasks' texts, from ../shared/benchmarks."""
    more = ["--tasks", tasks] if tasks else []
    run([*MTNLG, "evaluate", "texts", str(path), "--data", str(SHARED / "benchmarks"), *more])
    return path


def described(out: Path, stages: Sequence[str] = STAGES) -> dict[str, Any]:
    """By stage: seconds, documents and bytes."""
    found = {}
    for stage in stages:
        times, summary = (out / stage / name for name in ("times.json", "summary.json"))
        datasets = read_json(summary)["datasets"].values() if summary.is_file() else []
        found[stage] = {
            "seconds": read_json(times)["seconds"],
            **{
                name: sum(one[name] for one in datasets)
                for name in ("documents_in", "documents_out", "bytes_in", "bytes_out")
                if datasets
            },
        }
    return found


def written_tokens(out: Path) -> int:
    """Tokens of all datasets and splits."""
    manifests = [read_json(path) for path in (out / "tokenise").glob(f"*/{MANIFEST}")]
    return sum(split["tokens"] for one in manifests for split in one["about"]["splits"].values())


def manifest_hashes(out: Path) -> dict[str, str]:
    """SHA-256 of every stage's manifest, in which are those of its files."""
    return {stage: sha256_file(out / stage / MANIFEST) for stage in STAGES}
