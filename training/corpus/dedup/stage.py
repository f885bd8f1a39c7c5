"""Stage 5: fuzzy deduplication as the paper's (Smith et al. 2022, section 2.2), with exact verification."""

import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foundation.files import write_json
from foundation.heap import few_collections
from training.corpus.dedup.candidates import find_candidates
from training.corpus.dedup.clusters import connect
from training.corpus.dedup.config import DeduplicateConfig
from training.corpus.dedup.signatures import Sign, Signatures
from training.corpus.dedup.spread import near, spread
from training.corpus.dedup.tables import (
    cluster_table,
    drop_path,
    example_table,
    pair_table,
    size_table,
    write_drops,
)
from training.corpus.dedup.verification import collect_sets, compare
from training.corpus.documents import DROPPED
from training.corpus.parquet import read_parquet, write_parquet
from training.corpus.stage import Outcome, Shard, ShardStage, Work, shard_item
from training.corpus.tables import SHOWN_CHARACTERS

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

_ALGORITHM = 1  # to be raised when the same settings come to give another result
_FOUND, _WORKING, _DROPS = "found.json", "working", "drop"


class Deduplicate(ShardStage):
    """Keeps one of all documents that are alike: that of the dataset of highest priority, then of the least id.

    Scratch holds, for the report: clusters.parquet (members of clusters), sizes.parquet, dataset_pairs.parquet,
    examples.parquet (see tables.py) and found.json (counts); and what each shard loses.
    """

    name = "deduplicate"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: DeduplicateConfig = config.deduplicate
        self._seed = config.seed
        self._priority = {dataset.name: place for place, dataset in enumerate(config.datasets)}

    def identity(self) -> dict[str, Any]:
        """The settings, the seed of the hashes, the datasets' order of priority, and what decides which are letters."""
        return {
            **self._config.model_dump(mode="json"),
            "seed": self._seed,
            "priority": list(self._priority),
            "unicode": unicodedata.unidata_version,
            "algorithm": _ALGORITHM,
        }

    def run(self, work: Work) -> None:
        """As every stage of shards; a small input by threads."""
        with few_collections():
            super().run(near(work))

    def prepare(self, work: Work, scratch: Path) -> None:
        """Find the clusters. Signatures and sets, a file a shard, outlive a kill and go when the tables are written."""
        if not (scratch / _FOUND).is_file():
            write_json(scratch / _FOUND, self._find(work, scratch))
        shutil.rmtree(scratch / _WORKING, ignore_errors=True)

    def _find(self, work: Work, scratch: Path) -> dict[str, int]:
        config, working = self._config, scratch / _WORKING
        folder = working / "signatures"
        items = [shard_item(shard) for shard in work.shards]
        spread(work, "signatures", Sign(config, self._seed, folder), items)
        signatures = Signatures(folder, work.shards)
        work.report("candidates", 0, 1)
        candidates = find_candidates(signatures, config.arrangements * config.bands, self._priority)
        work.report("candidates", 1, 1)
        sets = collect_sets(work, working / "sets", signatures, candidates.sets, config.ngram)
        work.report("clusters", 0, 1)
        edges, counts = compare(candidates, sets, config)
        clusters = connect(candidates, sets, edges)
        table = cluster_table(clusters, signatures)
        write_drops(scratch / _DROPS, table, clusters, signatures)
        write_parquet(table, scratch / "clusters.parquet")
        write_parquet(size_table(clusters), scratch / "sizes.parquet")
        write_parquet(pair_table(table), scratch / "dataset_pairs.parquet")
        examples = example_table(table, clusters, signatures, config.examples, self._seed)
        write_parquet(examples, scratch / "examples.parquet")
        work.report("clusters", 1, 1)
        return {
            "documents": len(signatures),
            "documents without words": int((signatures.counts == 0).sum()),
            "documents with equal words": int((candidates.leader != np.arange(len(signatures))).sum()),
            "documents compared": len(candidates.sets),
            **counts,
            "clusters": int(clusters.clusters[-1]) + 1 if len(clusters.clusters) else 0,
            "dropped": int((clusters.documents != clusters.kept).sum()),
        }

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """Reads what `prepare` found for each shard as it comes."""
        return Dropper(scratch / _DROPS)


class Dropper:
    """Drops the documents of a shard that have a better duplicate."""

    def __init__(self, drops: Path) -> None:
        self._drops = drops

    def __call__(self, shard: Shard, table: pa.Table) -> Outcome:
        """`table` has the schema DOCUMENTS."""
        path = drop_path(self._drops, shard)
        if not path.is_file():
            return Outcome(table, DROPPED.empty_table(), {"kept": len(table)})
        drops = read_parquet(path)
        keep = np.ones(len(table), bool)
        keep[drops["row"].to_numpy()] = False
        gone = table.take(drops["row"])
        details = [
            f"of {kept}, Jaccard similarity {similarity:.3f}"
            for kept, similarity in zip(drops["kept_id"].to_pylist(), drops["similarity"].to_pylist(), strict=True)
        ]
        dropped = pa.table(
            [gone["id"], drops["rule"], pa.array(details, pa.string()), _beginning(gone["text"])], schema=DROPPED
        )
        counts = {f"rule: {count['values']}": count["counts"] for count in pc.value_counts(drops["rule"]).to_pylist()}
        return Outcome(table.filter(pa.array(keep)), dropped, {"kept": int(keep.sum()), **counts})


def _beginning(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_slice_codeunits(texts, 0, SHOWN_CHARACTERS)
