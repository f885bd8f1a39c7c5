"""The corpus pipeline as a whole, and its parts: everything that is asked of it, in one file.

whole          all of ../shared/corpus, from HTML to blended tokens, on two workers; then once more, where all is done
contamination  task texts planted in documents: all found, and nothing cut without a match
kills          a build killed at random moments ends as one left alone
loss           a small model on the curated corpus beside one on the same sources as they come (no bar)
extraction, dedup, tokenise: benchmarks/corpus_extraction.py, corpus_dedup.py and corpus_tokenise.py

    python -m benchmarks.corpus --datatrove DATATROVE/bin/python    # an hour; writes benchmarks/results/corpus.json
    python -m benchmarks.corpus --parts kills                       # that part anew; the others stay as they are there
"""

import argparse
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import corpus_contamination, corpus_dedup, corpus_extraction, corpus_kills, corpus_loss, corpus_tokenise
from benchmarks.common import RESULTS, Bar, write_result
from benchmarks.corpus_build import (
    CORPUS,
    WORKERS,
    build,
    described,
    manifest_hashes,
    whole_corpus,
    write_task_texts,
    written_tokens,
)
from foundation.files import read_json

WHOLE_SECONDS = 600.0
_DEDUP_ROUNDS = 3

Part = tuple[dict[str, Any], list[Bar]]


def main() -> None:
    """Measure the parts that are asked for and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", help="comma-separated; default all, those that need no datatrove without it")
    parser.add_argument("--datatrove", type=Path, help="the Python that has it, for dedup: see corpus_dedup.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        parts = _parts(Path(name), arguments.datatrove)
        wanted = arguments.parts.split(",") if arguments.parts else list(parts)
        unknown = set(wanted) - set(parts)
        if unknown:
            parser.error(f"no part is called {', '.join(unknown)}; there are: {', '.join(parts)}")
        for part in wanted:
            print(f"{part} ...", flush=True)
            _store(part, *parts[part]())


def _parts(folder: Path, datatrove: Path | None) -> dict[str, Callable[[], Part]]:
    """What to call for each part; `folder` is for what they write."""

    def texts() -> Path:
        path = folder / "texts.jsonl"
        return path if path.is_file() else write_task_texts(path)

    def contamination() -> Part:
        found = corpus_contamination.measure(folder / "contamination", texts())
        return found, corpus_contamination.bars(found)

    def kills() -> Part:
        found = corpus_kills.measure(folder / "kills", texts())
        return found, corpus_kills.bars(found)

    def extraction() -> Part:
        found = corpus_extraction.measure()
        return found, [corpus_extraction.bar(found)]

    def tokenise() -> Part:
        found = corpus_tokenise.measure(sorted(CORPUS.glob("*.jsonl.gz")), 3)
        return found, corpus_tokenise.bars(found)

    return {
        "whole": lambda: _whole(folder / "whole", texts()),
        "contamination": contamination,
        "kills": kills,
        "extraction": extraction,
        "tokenise": tokenise,
        "dedup": lambda: corpus_dedup.measure(datatrove, corpus_dedup.SIZES, _DEDUP_ROUNDS),
        "loss": lambda: (corpus_loss.measure(folder / "loss", texts()), []),
    }


def _whole(out: Path, texts: Path) -> Part:
    config = whole_corpus(out, texts)
    seconds = build(config)
    hashes = manifest_hashes(out)
    again = build(config)
    found = {
        "workers": WORKERS,
        "seconds": seconds,
        "seconds_where_all_is_done": again,
        "tokens": written_tokens(out),
        "report_bytes": (out / "report.html").stat().st_size,
        "stages": described(out),
    }
    bars = [
        Bar("from HTML to tokens, all of shared/corpus", seconds, "s", at_most=WHOLE_SECONDS),
        Bar("stages that a second build changes", _changed(hashes, manifest_hashes(out)), "", at_most=0),
    ]
    return found, bars


def _changed(one: dict[str, str], other: dict[str, str]) -> int:
    return sum(one[stage] != other[stage] for stage in one)


def _store(part: str, found: dict[str, Any], bars: list[Bar]) -> None:
    """Put a part into the results, beside what is there of the others."""
    path = RESULTS / "corpus.json"
    parts = read_json(path)["measurements"] if path.is_file() else {}
    measured = {"date": datetime.now(UTC).date().isoformat(), "bars": [bar.as_json() for bar in bars], **found}
    parts = dict(sorted({**parts, part: measured}.items()))
    write_result("corpus", parts, [_bar(kept) for one in parts.values() for kept in one["bars"]])


def _bar(kept: dict[str, Any]) -> Bar:
    return Bar(**{name: value for name, value in kept.items() if name != "met"})


if __name__ == "__main__":
    main()
