"""How well text is found in real pages: 181 labelled news pages, by the article extraction benchmark's own metric.

The metric is that of github.com/scrapinghub/article-extraction-benchmark: texts are compared by their shingles of four
words, with multiplicity; each page's true positives, false positives and false negatives are normalised to a sum of 1;
precision and recall are means over the pages that have one; F1 is theirs.

    python -m benchmarks.corpus_extraction    # a minute; writes benchmarks/results/corpus_extraction.json
"""

import argparse
import gzip
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, write_result
from training.corpus import extractors
from training.corpus.extract import ExtractConfig

_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "html"
PAGES = _FOLDER / "article_extraction_benchmark.jsonl.gz"
SEGMENTS = _FOLDER / "trafilatura_eval.jsonl.gz"
F1_BAR = 0.95

_WORD = re.compile(r"\w+")
_SHINGLE = 4
_WAYS: dict[str, dict[str, Any]] = {
    "trafilatura": {},
    "trafilatura fast": {"fast": True},
    "trafilatura precision": {"focus": "precision"},
    "trafilatura recall": {"focus": "recall"},
    "resiliparse": {"extractor": "resiliparse"},
    "justext": {"extractor": "justext"},
}


@dataclass(frozen=True)
class Matches:
    """Shingles found, found beside the truth, and missed; parts of one, or all zero."""

    found: float
    wrong: float
    missed: float


@dataclass(frozen=True)
class Score:
    """Means over pages."""

    f1: float
    precision: float
    recall: float


def main() -> None:
    """Measure every way and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(_WAYS), help="comma-separated; default all")
    arguments = parser.parse_args()
    found = measure(arguments.ways.split(","))
    write_result("corpus_extraction", found, [bar(found)])


def bar(measured: dict[str, Any]) -> Bar:
    """The bar that the default way is held to."""
    f1 = measured["ways"]["trafilatura"]["f1"]
    return Bar(f"F1 of text extraction on {measured['pages']} labelled pages", f1, "", at_least=F1_BAR)


def measure(ways: Sequence[str] = tuple(_WAYS)) -> dict[str, Any]:
    """Every way's scores on the labelled pages and its speed, and which of the labelled segments it keeps."""
    pages, segments = list(_read(PAGES)), list(_read(SEGMENTS))
    return {
        "pages": len(pages),
        "segment_pages": len(segments),
        "libraries": {name: version(name) for name in ("trafilatura", "resiliparse", "justext")},
        "ways": {way: _measure_way(ExtractConfig.model_validate(_WAYS[way]), pages, segments) for way in ways},
    }


def score_pages(pages: Iterable[tuple[str, str]]) -> Score:
    """Of (true text, extracted text). A page of which nothing was extracted has no precision, only a recall of 0."""
    compared = [matches(true, extracted) for true, extracted in pages]
    precision = statistics.mean(m.found / (m.found + m.wrong) for m in compared if m.found + m.wrong > 0)
    recall = statistics.mean(m.found / (m.found + m.missed) for m in compared if m.found + m.missed > 0)
    return Score(2 * precision * recall / (precision + recall), precision, recall)


def matches(true: str, extracted: str) -> Matches:
    """Compare the shingles of two texts."""
    wanted, given = _shingles(true), _shingles(extracted)
    counts = ((wanted & given).total(), (given - wanted).total(), (wanted - given).total())
    whole = sum(counts) or 1
    return Matches(*(count / whole for count in counts))


def _shingles(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text)
    return Counter(tuple(words[start : start + _SHINGLE]) for start in range(max(min(1, len(words)), len(words) - 3)))


def _measure_way(
    config: ExtractConfig, pages: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    extract = getattr(extractors, config.extractor)(**config.options())
    extract(pages[0]["html"].encode())  # what is loaded on the first use is not timed
    started = time.process_time()
    texts = [extract(page["html"].encode()) for page in pages]
    seconds = time.process_time() - started
    score = score_pages(zip((page["article_body"] for page in pages), texts, strict=True))
    kept = [(page, extract(page["html"].encode())) for page in segments]
    return {
        **asdict(score),
        "pages_per_second_of_a_core": len(pages) / seconds,
        "segments_to_keep_kept": _share(segment in text for page, text in kept for segment in page["must_include"]),
        "segments_to_drop_kept": _share(segment in text for page, text in kept for segment in page["must_exclude"]),
    }


def _share(answers: Iterable[bool]) -> float:
    return statistics.mean(map(float, answers))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        yield from map(json.loads, handle)


if __name__ == "__main__":
    main()
