"""datatrove's MinHash deduplication, run by the Python of an environment of its own; see benchmarks/corpus_dedup.py.

    PYTHON benchmarks/corpus_dedup_datatrove.py INPUT OUTPUT WORKERS

INPUT has one Parquet file a task. Its four stages, as its example has them, with words split at white space after its
own normalisation: its default, spaCy's words, takes six times as long.
"""

import importlib
import sys
from pathlib import Path

BANDS, ROWS, NGRAM = 20, 13, 5


def main() -> None:
    """Write OUTPUT/kept/*.parquet."""
    source, target, workers = sys.argv[1:]
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.writers import ParquetWriter
    from datatrove.utils.hashing import HashConfig

    config = MinhashConfig(
        n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=ROWS, hash_config=HashConfig(precision=64)
    )
    tasks = len(list(Path(source).rglob("*.parquet")))
    reader = ParquetReader(source, glob_pattern="**/*.parquet")
    signatures, buckets, remove = (f"{target}/{name}" for name in ("signatures", "buckets", "remove"))
    for number, (pipeline, count) in enumerate(
        (
            ([reader, MinhashDedupSignature(signatures, config=config, language=Words())], tasks),
            ([MinhashDedupBuckets(signatures, buckets, config=config)], BANDS),
            ([MinhashDedupCluster(buckets, remove, config=config)], 1),
            ([reader, MinhashDedupFilter(remove), ParquetWriter(f"{target}/kept")], tasks),
        )
    ):
        LocalPipelineExecutor(
            pipeline, tasks=count, workers=int(workers), logging_dir=f"{target}/logs/{number}", skip_completed=False
        ).run()


class Words:
    """What datatrove asks of a tokenizer of words."""

    language = "eng"

    def word_tokenize(self, text: str) -> list[str]:
        """Split at white space; the text was normalised before."""
        return text.split()


# Its processes import this file anew.
importlib.import_module("datatrove.utils.word_tokenizers").WordTokenizer.register(Words)


if __name__ == "__main__":
    main()
