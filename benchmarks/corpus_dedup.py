"""How well, how fast and how large deduplication goes, beside datatrove's.

50,000 documents with near duplicates of known similarity (benchmarks/dedup_documents.py) lie in Parquet files. Both
read them and write those that they keep, with 20 bands of 13 rows over 5-grams of words, two workers each, from the
start of the interpreter to its end, in turns. What is alike is computed here by plain sets. Then ours alone with up to
500,000 documents. Memory is that of all its processes (what they share counted once).

    python -m venv DATATROVE && DATATROVE/bin/pip install "datatrove[io,processing]==0.10.1"
    python -m benchmarks.corpus_dedup --datatrove DATATROVE/bin/python    # 15 minutes
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Bar, write_result
from benchmarks.dedup_documents import CORPUS, Generated, dataset_names, family_pairs, generate, jaccard, write_shards
from foundation.heap import set_heap_aside

DOCUMENTS = 50_000
SIZES = (50_000, 100_000, 200_000, 500_000)
WORKERS = 2
RECALL, PRECISION, FASTER = 0.95, 0.90, 8.0
# Near linear: ten times the documents in at most this many times the seconds and bytes.
_TEN_TIMES = 11.0
_ALIKE, _UNLIKE = 0.8, 0.5
_SAMPLE_SECONDS = 0.25


@dataclass(frozen=True)
class Run:
    """One run in a process of its own."""

    seconds: float
    peak_megabytes: float
    kept: int


def main() -> None:
    """Measure everything and write the results; or, with --run, deduplicate one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datatrove", type=Path, help="the Python that has it; without: ours alone")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--quick", action="store_true", help="2,000 documents, into another file")
    parser.add_argument("--run", nargs=2, type=Path, metavar=("INPUT", "OUTPUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        deduplicate(*arguments.run)
        set_heap_aside()  # as the command does
        return
    sizes = [2000, 4000] if arguments.quick else SIZES
    found, bars = measure(arguments.datatrove, sizes, 1 if arguments.quick else arguments.rounds)
    write_result("corpus_dedup.quick" if arguments.quick else "corpus_dedup", found, bars)


def measure(datatrove: Path | None, sizes: Sequence[int], rounds: int) -> tuple[dict[str, Any], list[Bar]]:
    """Everything, and the bars that it is held to; the first of `sizes` is what is compared with datatrove."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        labelled = {file: _labelled_pairs(file, folder / file) for file in ("articles_1000", "articles_2500")}
        warm_up(folder / "warm")
        generated = generate(sizes[0])
        write_shards(generated, folder / "input")
        quality, runs = _side_by_side(generated, folder, datatrove, rounds)
        scaling = {f"{size}": asdict(_scaled(size, folder / "scaled")) for size in sizes}
    found = {"labelled": labelled, "quality": quality, "runs": runs, "scaling": scaling}
    return found, _bars(found, sizes)


def deduplicate(source: Path, target: Path, workers: int = WORKERS) -> None:
    """Run the stage on source/DATASET/*.parquet, as a build does."""
    from training.corpus.config import CorpusConfig
    from training.corpus.dedup.stage import Deduplicate
    from training.corpus.engine import DaftEngine
    from training.corpus.stage import Shard, Work

    names = [name for name in dataset_names() if (source / name).is_dir()]
    config = CorpusConfig.model_validate(
        {"out": target, "datasets": [{"name": name, "paths": ["made"]} for name in names]}
    )
    shards = [Shard(name, path.stem, path) for name in names for path in sorted((source / name).glob("*.parquet"))]
    work = Work(shards, target, DaftEngine(workers=workers), lambda what, done, total: None)
    Deduplicate(config).run(work)


def warm_up(folder: Path) -> dict[str, float]:
    """Compile the inner loops, which later runs find on the disk; seconds of a first run and of a second."""
    write_shards(generate(100), folder / "input")
    return {name: _ours(folder / "input", folder / name).seconds for name in ("first", "second")}


def _labelled_pairs(name: str, folder: Path) -> dict[str, Any]:
    with gzip.open(CORPUS / "near_duplicates" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [row["text"] for row in rows]
    places = {row["id"]: place for place, row in enumerate(rows)}
    named = json.loads((CORPUS / "near_duplicates" / f"{name}.pairs.json").read_text(encoding="utf-8"))["pairs"]
    pairs = {tuple(sorted((places[a], places[b]))) for a, b in named}
    write_shards(Generated(texts, [dataset_names()[0]] * len(texts), []), folder / "input")
    _ours(folder / "input", folder / "output")
    joined = set(_joined_pairs(folder / "output"))
    return {
        "pairs": len(pairs),
        "found": len(pairs & joined),
        "joined_below_0.5": sum(jaccard(texts[a], texts[b]) < _UNLIKE for a, b in joined - pairs),
        "joined_beside_the_pairs": len(joined - pairs),
    }


def _side_by_side(
    generated: Generated, folder: Path, datatrove: Path | None, rounds: int
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    truth = {tuple(sorted((a, b))): similarity for a, b, similarity in family_pairs(generated)}
    quality: dict[str, Any] = {"injected": _histogram(list(truth.values()))}
    runs: dict[str, list[dict[str, Any]]] = {}
    for turn in range(rounds):
        target = folder / f"ours{turn}"
        runs.setdefault("ours", []).append(asdict(_ours(folder / "input", target)))
        if turn == 0:
            quality["ours"] = _quality(generated, truth, _joined_pairs(target))
            quality["ours"]["found"] = json.loads((target / "scratch" / "found.json").read_text(encoding="utf-8"))
        if datatrove:
            target = folder / f"theirs{turn}"
            runs.setdefault("datatrove", []).append(asdict(_datatrove(datatrove, folder / "input", target)))
            if turn == 0:
                quality["datatrove"] = _quality(
                    generated, truth, _datatrove_pairs(target / "buckets", folder / "input")
                )
    return quality, runs


def _quality(generated: Generated, truth: dict[tuple[int, ...], float], joined: Iterator[tuple[int, int]]) -> Any:
    """Of pairs that are alike, the share in one component; of pairs in one component, the share that is alike."""
    pairs = set(joined)
    values = [truth[pair] if pair in truth else jaccard(*(generated.texts[place] for place in pair)) for pair in pairs]
    alike = {pair for pair, similarity in truth.items() if similarity >= _ALIKE}
    return {
        "recall": len(alike & pairs) / len(alike),
        "precision": sum(value >= _ALIKE for value in values) / len(values),
        "precision_at_0.7": sum(value >= 0.7 for value in values) / len(values),
        "joined_below_0.5": sum(value < _UNLIKE for value in values),
        "pairs_joined": len(pairs),
    }


def _histogram(values: Sequence[float]) -> dict[str, int]:
    counts, _ = np.histogram(values, bins=[0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01])
    names = ("below 0.5", "0.5 to 0.6", "0.6 to 0.7", "0.7 to 0.8", "0.8 to 0.9", "0.9 to 1")
    return dict(zip(names, counts.tolist(), strict=True))


def _joined_pairs(folder: Path) -> Iterator[tuple[int, int]]:
    from training.corpus.parquet import read_parquet

    clusters: dict[int, list[int]] = {}
    for row in read_parquet(folder / "scratch" / "clusters.parquet", ["cluster", "id"]).to_pylist():
        clusters.setdefault(row["cluster"], []).append(int(row["id"].rpartition("/")[2]))
    for members in clusters.values():
        yield from combinations(sorted(members), 2)


def _datatrove_pairs(buckets: Path, source: Path) -> Iterator[tuple[int, int]]:
    """Pairs in one component of datatrove's duplicates: records of (file, document, file, document)."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    from training.corpus.parquet import read_parquet

    files = [read_parquet(path, ["id"])["id"].to_pylist() for path in sorted(source.rglob("*.parquet"))]
    numbers = [np.array([int(name.rpartition("/")[2]) for name in names]) for names in files]
    first = np.cumsum([0, *(len(part) for part in numbers)])
    records = np.concatenate([np.fromfile(path, "<u4") for path in buckets.rglob("*.dups")]).reshape(-1, 4).astype(int)
    left, right = first[records[:, 0]] + records[:, 1], first[records[:, 2]] + records[:, 3]
    graph = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(first[-1], first[-1]))
    _, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    document = np.concatenate(numbers)[order]
    for members in np.split(document, np.flatnonzero(np.diff(labels[order])) + 1):
        yield from combinations(sorted(members.tolist()), 2)


def _scaled(size: int, folder: Path) -> Run:
    write_shards(generate(size), folder / f"input{size}")
    return _ours(folder / f"input{size}", folder / f"output{size}")


def _ours(source: Path, target: Path) -> Run:
    return _timed([sys.executable, "-m", "benchmarks.corpus_dedup", "--run", str(source), str(target)], target)


def _datatrove(python: Path, source: Path, target: Path) -> Run:
    script = str(Path(__file__).with_name("corpus_dedup_datatrove.py"))
    return _timed([str(python), script, str(source), str(target), str(WORKERS)], target / "kept")


def _timed(command: Sequence[str], kept: Path) -> Run:
    import pyarrow.parquet as pq

    os.sync()  # what the run before has left to write is not this one's
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - started
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors[-4000:]}")
    files = [path for path in kept.rglob("*.parquet") if not {"scratch", "dropped"} & set(path.relative_to(kept).parts)]
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    return Run(seconds, peak[0], rows)


def _watch(process: "subprocess.Popen[str]", peak: list[float]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(_proportional_megabytes(pid) for pid in _tree(process.pid)))
        time.sleep(_SAMPLE_SECONDS)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text(encoding="utf-8").split()
        except OSError:
            continue
        for child in children:
            yield from _tree(int(child))


def _proportional_megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _bars(found: dict[str, Any], sizes: Sequence[int]) -> list[Bar]:
    bars = []
    for name, labelled in found["labelled"].items():
        bars.append(Bar(f"{name}: labelled pairs found", labelled["found"], "", at_least=labelled["pairs"]))
        bars.append(Bar(f"{name}: others joined below 0.5", labelled["joined_below_0.5"], "", at_most=0))
    ours = found["quality"]["ours"]
    bars.append(Bar(f"recall at {_ALIKE} and more", ours["recall"], "", at_least=RECALL))
    bars.append(Bar(f"precision at {_ALIKE}", ours["precision"], "", at_least=PRECISION))
    seconds = {name: statistics.median(run["seconds"] for run in runs) for name, runs in found["runs"].items()}
    if len(seconds) > 1:
        faster = seconds["datatrove"] / seconds["ours"]
        bars.append(Bar("documents/s over datatrove's", faster, "x", at_least=FASTER))
    least, most = (found["scaling"][f"{size}"] for size in (sizes[0], sizes[-1]))
    times = _TEN_TIMES * sizes[-1] / sizes[0] / 10
    for what in ("seconds", "peak_megabytes"):
        name = f"{what} of {sizes[-1]:,} over {sizes[0]:,} documents"
        bars.append(Bar(name, most[what] / least[what], "x", at_most=times))
    return bars


if __name__ == "__main__":
    main()
