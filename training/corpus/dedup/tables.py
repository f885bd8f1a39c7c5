"""What the report shows, and what is to be dropped of each shard."""

import hashlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from training.corpus.dedup.clusters import Clusters
from training.corpus.dedup.signatures import Integers, Signatures
from training.corpus.parquet import write_parquet
from training.corpus.stage import Shard
from training.corpus.tables import SHOWN_CHARACTERS

EXACT, NEAR = "exact duplicate", "near duplicate"


def cluster_table(clusters: Clusters, signatures: Signatures) -> pa.Table:
    """Members of clusters: cluster, size, id, dataset, rule (null where kept), kept_id, kept_dataset, similarity."""
    documents, places = np.unique(np.concatenate([clusters.documents, clusters.kept]), return_inverse=True)
    ids = signatures.ids(documents)
    names = [shard.dataset for shard in signatures.shards]
    datasets = pa.array(names, pa.string()).take(pa.array(signatures.shard_numbers(documents)))
    member, kept = np.split(places, 2)
    sizes = np.bincount(clusters.clusters)[clusters.clusters] if len(member) else np.zeros(0, np.int64)
    rules = np.where(clusters.equal, EXACT, NEAR)
    return pa.table(
        {
            "cluster": clusters.clusters,
            "size": sizes.astype(np.int64),
            "id": ids.take(pa.array(member)),
            "dataset": datasets.take(pa.array(member)),
            "rule": pa.array(rules, pa.string(), mask=clusters.documents == clusters.kept),
            "kept_id": ids.take(pa.array(kept)),
            "kept_dataset": datasets.take(pa.array(kept)),
            "similarity": clusters.similarity,
        }
    )


def size_table(clusters: Clusters) -> pa.Table:
    """How many clusters there are of each size: size, clusters."""
    sizes, counts = np.unique(np.bincount(clusters.clusters), return_counts=True)
    return pa.table({"size": sizes.astype(np.int64), "clusters": counts.astype(np.int64)})


def pair_table(table: pa.Table) -> pa.Table:
    """Documents dropped, by kept_dataset, dataset and rule: documents; of the rows of `cluster_table`."""
    dropped = table.filter(table["rule"].is_valid())
    counts = Counter(zip(*(dropped[name].to_pylist() for name in ("kept_dataset", "dataset", "rule")), strict=True))
    rows = [
        {"kept_dataset": kept, "dataset": dataset, "rule": rule, "documents": count}
        for (kept, dataset, rule), count in sorted(counts.items())
    ]
    fields = [(name, pa.string()) for name in ("kept_dataset", "dataset", "rule")]
    return pa.Table.from_pylist(rows, schema=pa.schema([*fields, ("documents", pa.int64())]))


def example_table(table: pa.Table, clusters: Clusters, signatures: Signatures, count: int, seed: int) -> pa.Table:
    """Some near duplicates with the beginnings of the texts: the rows of `cluster_table`, kept_text, text.

    Drawn by a hash of their ids, in turn from each pair of datasets.
    """
    chosen = _chosen(table, clusters, count, seed)
    documents, kept = clusters.documents[chosen], clusters.kept[chosen]
    wanted = np.unique(np.concatenate([documents, kept]))
    texts = pa.array(_beginnings(signatures, wanted), pa.large_string())
    rows = table.take(pa.array(chosen))
    rows = rows.append_column("kept_text", texts.take(pa.array(np.searchsorted(wanted, kept))))
    return rows.append_column("text", texts.take(pa.array(np.searchsorted(wanted, documents))))


def write_drops(folder: Path, table: pa.Table, clusters: Clusters, signatures: Signatures) -> None:
    """folder/DATASET/NAME.parquet for each shard that loses documents: row, rule, kept_id, similarity."""
    dropped = np.flatnonzero(clusters.documents != clusters.kept)
    dropped = dropped[np.argsort(clusters.documents[dropped])]
    columns = table.select(["rule", "kept_id", "similarity"]).take(pa.array(dropped))
    at = 0
    for number, rows in signatures.by_shard(clusters.documents[dropped]):
        part = columns.slice(at, len(rows)).add_column(0, "row", pa.array(rows))
        write_parquet(part, drop_path(folder, signatures.shards[number]))
        at += len(rows)


def drop_path(folder: Path, shard: Shard) -> Path:
    """What is to be dropped of a shard; absent where nothing is."""
    return folder / shard.dataset / f"{shard.name}.parquet"


def _chosen(table: pa.Table, clusters: Clusters, count: int, seed: int) -> Integers:
    near = np.flatnonzero((clusters.documents != clusters.kept) & ~clusters.equal)
    rows = table.select(["kept_dataset", "dataset", "id"]).take(pa.array(near)).to_pylist()
    turns: dict[tuple[str, str], list[tuple[bytes, int]]] = defaultdict(list)
    for place, row in zip(near.tolist(), rows, strict=True):
        digest = hashlib.sha256(f"{seed} {row['id']}".encode()).digest()
        turns[row["kept_dataset"], row["dataset"]].append((digest, place))
    order = [
        (turn, pair, place) for pair, drawn in turns.items() for turn, (_, place) in enumerate(sorted(drawn)[:count])
    ]
    return np.array([place for _, _, place in sorted(order)[:count]], np.int64)


def _beginnings(signatures: Signatures, documents: Integers) -> list[str]:
    texts: list[str] = []
    for number, rows in signatures.by_shard(documents):
        with pq.ParquetFile(signatures.shards[number].path) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            groups = np.searchsorted(ends, rows, side="right")
            for group in np.unique(groups).tolist():  # each is decompressed once
                column = file.read_row_group(group, columns=["text"])["text"]
                within = rows[groups == group] - (ends[group] - len(column))
                texts += [text[:SHOWN_CHARACTERS] for text in column.take(pa.array(within)).to_pylist()]
    return texts
