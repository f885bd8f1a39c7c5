"""Deduplication of small corpora: what is kept, and that nothing but the texts, ids and settings decides it."""

import gzip
import json
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.corpus.test_dedup_kernels import edited, ngrams_of, some_texts
from training.corpus.config import CorpusConfig
from training.corpus.dedup import spread
from training.corpus.dedup.spread import near
from training.corpus.dedup.stage import Deduplicate
from training.corpus.documents import DOCUMENTS, DROPPED
from training.corpus.parquet import read_parquet, write_parquet
from training.corpus.stage import Shard, Work

NEAR_DUPLICATES = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "near_duplicates"
TABLES = ("clusters", "sizes", "dataset_pairs", "examples")

Texts = Mapping[str, str]  # by id: DATASET/...


class HereEngine:
    """Does the work in this process; what it is sent is pickled as for another."""

    workers = 2

    def __init__(self) -> None:
        self.calls = 0

    def map(self, function: Callable[[str], str], items: Sequence[str]) -> Iterator[str]:
        self.calls += 1
        for item in reversed(items):
            yield pickle.loads(pickle.dumps(function))(item)  # noqa: S301 - its own pickle

    def daft(self) -> Any:
        raise NotImplementedError


class Corpus:
    """Documents in shards of `size`, and their deduplication."""

    def __init__(self, folder: Path, texts: Texts, datasets: Sequence[str], size: int = 50, **settings: Any) -> None:
        self.shards = []
        for name in datasets:
            mine = [(number, text) for number, text in texts.items() if number.startswith(f"{name}/")]
            for place, begin in enumerate(range(0, len(mine), size)):
                rows = [
                    {"id": number, "source": "made", "url": None, "date": None, "text": text}
                    for number, text in mine[begin : begin + size]
                ]
                path = folder / "input" / name / f"{place:05d}.parquet"
                write_parquet(pa.Table.from_pylist(rows, schema=DOCUMENTS), path)
                self.shards.append(Shard(name, path.stem, path))
        config = CorpusConfig.model_validate(
            {
                "out": folder,
                "datasets": [{"name": name, "paths": ["unused"]} for name in datasets],
                "deduplicate": settings,
            }
        )
        self.stage = Deduplicate(config)
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.engine = HereEngine()

    def prepare(self, report: Callable[[str, int, int], None] = lambda what, done, total: None) -> dict[str, int]:
        self.stage.prepare(near(Work(self.shards, self.scratch.parent, self.engine, report)), self.scratch)
        found: dict[str, int] = json.loads((self.scratch / "found.json").read_text(encoding="utf-8"))
        return found

    def kept(self) -> set[str]:
        apply = pickle.loads(pickle.dumps(self.stage)).open(self.scratch)  # noqa: S301 - its own pickle
        kept: list[str] = []
        for shard in self.shards:
            table = read_parquet(shard.path)
            outcome = apply(shard, table)
            assert outcome.documents.schema.equals(DOCUMENTS) and outcome.dropped.schema.equals(DROPPED)
            gone = set(outcome.dropped["id"].to_pylist())
            assert outcome.documents["id"].to_pylist() == [i for i in table["id"].to_pylist() if i not in gone]
            assert sum(outcome.counts.values()) == len(table)
            kept += outcome.documents["id"].to_pylist()
        return set(kept)

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_parquet(self.scratch / f"{name}.parquet").to_pylist()
        return rows

    def bytes(self) -> dict[str, bytes]:
        return {name: (self.scratch / f"{name}.parquet").read_bytes() for name in TABLES}


def mixed_texts() -> dict[str, str]:
    """Three datasets that share templates, with equal texts and a few that have no words."""
    texts = {}
    for number, text in enumerate(some_texts(240, seed=7)):
        name = ("best", "middle", "web")[number % 3]
        texts[f"{name}/{number:04d}"] = text
    texts |= {f"web/equal{number}": texts["best/0000"].upper() for number in range(5)}
    return texts | {
        "web/empty": "",
        "best/empty": "...",
        "middle/short": "only three words",
        "web/short": "Only three, words",
    }


def test_the_labelled_pairs_are_found_and_nothing_else_is_joined(tmp_path: Path) -> None:
    if not NEAR_DUPLICATES.is_dir():
        pytest.skip("the labelled near duplicates are not here")
    for name in ("articles_1000", "articles_2500"):
        with gzip.open(NEAR_DUPLICATES / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts = {f"news/{row['id']}": row["text"] for row in map(json.loads, lines)}
        pairs = json.loads((NEAR_DUPLICATES / f"{name}.pairs.json").read_text(encoding="utf-8"))["pairs"]
        corpus = Corpus(tmp_path / name, texts, ["news"], size=400)
        found = corpus.prepare()
        joined = {(row["kept_id"], row["id"]) for row in corpus.table("clusters") if row["rule"]}
        assert joined == {tuple(sorted((f"news/{a}", f"news/{b}"))) for a, b in pairs}
        assert found["dropped"] == len(pairs) == len(texts) - len(corpus.kept())


def test_the_best_dataset_then_the_least_id_is_kept(tmp_path: Path) -> None:
    text = some_texts(1, seed=3)[0]
    near = " ".join([*text.split()[:-1], "changed"])
    texts = {"web/1": text, "web/0": near, "best/9": near, "best/8": text.upper(), "middle/1": text}
    corpus = Corpus(tmp_path / "a", texts, ["best", "middle", "web"])
    corpus.prepare()
    assert corpus.kept() == {"best/8"}
    rules = {row["id"]: row["rule"] for row in corpus.table("clusters")}
    assert rules == {
        "best/8": None,
        "best/9": "near duplicate",
        "middle/1": "exact duplicate",
        "web/0": "near duplicate",
        "web/1": "exact duplicate",
    }
    other = Corpus(tmp_path / "b", texts, ["web", "middle", "best"])
    other.prepare()
    assert other.kept() == {"web/0"}
    assert corpus.stage.identity() != other.stage.identity()


def test_chains_are_one_cluster_with_true_similarities(tmp_path: Path) -> None:
    chance = random.Random(4)
    chain = [[f"w{chance.randrange(10**6)}" for _ in range(300)]]
    for step in range(5):
        words = list(chain[-1])
        words[step * 40 : step * 40 + 8] = [f"n{chance.randrange(10**6)}" for _ in range(8)]
        chain.append(words)
    texts = {f"a/{place}": " ".join(words) for place, words in enumerate(chain)}
    corpus = Corpus(tmp_path, texts, ["a"])
    corpus.prepare()
    rows = corpus.table("clusters")
    assert [(row["id"], row["size"], row["kept_id"]) for row in rows] == [(name, 6, "a/0") for name in sorted(texts)]
    for row in rows:
        a, b = ngrams_of(texts[row["id"]]), ngrams_of(texts["a/0"])
        assert row["similarity"] == pytest.approx(len(a & b) / len(a | b), abs=1e-12)
    assert rows[-1]["similarity"] < 0.8 < rows[1]["similarity"]


@pytest.mark.parametrize("size", [7, 1000])
def test_nothing_depends_on_the_sharding_or_on_who_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    texts = mixed_texts()
    names = ["best", "middle", "web"]
    reference = Corpus(tmp_path / "reference", texts, names)
    found = reference.prepare()
    assert 0 < len(reference.kept()) < len(texts) and found["clusters"] > 3
    shuffled = list(texts.items())
    random.Random(size).shuffle(shuffled)
    other = Corpus(tmp_path / "other", dict(shuffled), names, size=size)
    monkeypatch.setattr(spread, "_SMALL_BYTES", 0)
    assert other.prepare() == found
    assert other.engine.calls == 2 and reference.engine.calls == 0
    assert other.kept() == reference.kept()
    assert other.bytes() == reference.bytes()


def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    texts = mixed_texts()
    names = ["best", "middle", "web"]
    reference = Corpus(tmp_path / "reference", texts, names, size=30)
    steps = []
    reference.prepare(lambda what, done, total: steps.append(what))
    corpus = Corpus(tmp_path / "killed", texts, names, size=30)
    for last in range(0, len(steps), 2):
        left = iter(range(last))

        def report(what: str, done: int, total: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            corpus.prepare(report)
    corpus.prepare()
    assert corpus.bytes() == reference.bytes() and corpus.kept() == reference.kept()
    assert not (corpus.scratch / "working").exists()
    # Finished, it computes nothing.
    corpus.shards[0].path.write_bytes(b"")
    corpus.prepare()


def test_texts_without_words_stay_and_short_ones_are_compared(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, mixed_texts(), ["best", "middle", "web"])
    found = corpus.prepare()
    kept = corpus.kept()
    assert {"web/empty", "best/empty", "middle/short"} <= kept and "web/short" not in kept
    assert found["documents without words"] == 2
    assert not any(number.startswith("web/equal") for number in kept)


def test_thousands_from_one_template_take_little_work_and_are_all_found(tmp_path: Path) -> None:
    chance = random.Random(8)
    template = [f"t{chance.randrange(10**6)}" for _ in range(200)]
    texts = {f"web/copy{number:05d}": " ".join(template) for number in range(1500)}
    for number in range(2500):
        place = chance.randrange(195)
        words = [*template[:place], f"name{number}", *template[place + 1 :]]
        texts[f"web/near{number:05d}"] = " ".join(words)
    corpus = Corpus(tmp_path, texts, ["web"], size=1000)
    found = corpus.prepare()
    assert corpus.kept() == {"web/copy00000"}
    assert found["documents with equal words"] == 1499 and found["clusters"] == 1
    assert found["comparisons"] < 3 * 2500 and found["bands left unfinished"] == 0


def test_pairs_are_found_as_often_as_the_formula_says(tmp_path: Path) -> None:
    chance = random.Random(9)
    texts, expected, alike = {}, 0.0, 0
    for number in range(600):
        words = [f"w{chance.randrange(10**6)}" for _ in range(200)]
        texts[f"a/{number}x"], texts[f"a/{number}y"] = " ".join(words), " ".join(edited(words, 0.02, chance))
        a, b = ngrams_of(texts[f"a/{number}x"]), ngrams_of(texts[f"a/{number}y"])
        similarity = len(a & b) / len(a | b)
        if similarity >= 0.8:
            alike += 1
            expected += 1 - (1 - similarity**13) ** 20
    papers = Corpus(tmp_path / "1", texts, ["a"], size=500, arrangements=1)
    found = papers.prepare()
    assert 200 < alike < 600
    # A standard deviation of the count is at most the root of a quarter of the pairs.
    assert found["clusters"] == found["dropped"] == pytest.approx(expected, abs=2 * alike**0.5)
    # Another arrangement finds the same and more.
    corpus = Corpus(tmp_path / "2", texts, ["a"], size=500)
    more = corpus.prepare()["dropped"]
    assert corpus.kept() < papers.kept() and found["dropped"] < more <= alike


def test_the_report_tables_agree(tmp_path: Path) -> None:
    texts = mixed_texts()
    corpus = Corpus(tmp_path, texts, ["best", "middle", "web"], examples=5)
    found = corpus.prepare()
    rows = corpus.table("clusters")
    assert sum(row["size"] * row["clusters"] for row in corpus.table("sizes")) == len(rows)
    pairs = corpus.table("dataset_pairs")
    assert sum(row["documents"] for row in pairs) == found["dropped"] == sum(row["rule"] is not None for row in rows)
    assert {row["rule"] for row in pairs} == {"exact duplicate", "near duplicate"}
    examples = corpus.table("examples")
    assert len(examples) == 5 and len({(row["kept_dataset"], row["dataset"]) for row in examples}) > 1
    for row in examples:
        assert row["rule"] == "near duplicate"
        assert texts[row["id"]].startswith(row["text"]) and texts[row["kept_id"]].startswith(row["kept_text"])


def test_a_corpus_without_duplicates_or_documents_passes(tmp_path: Path) -> None:
    chance = random.Random(1)
    texts = {f"a/{number}": " ".join(f"w{chance.randrange(10**6)}" for _ in range(50)) for number in range(30)}
    corpus = Corpus(tmp_path / "a", texts, ["a"])
    assert corpus.prepare()["clusters"] == 0 and len(corpus.kept()) == 30
    assert pq.read_metadata(corpus.scratch / "examples.parquet").num_rows == 0
    empty = Corpus(tmp_path / "b", {}, ["a"])
    path = tmp_path / "b" / "input" / "a" / "00000.parquet"
    write_parquet(DOCUMENTS.empty_table(), path)
    empty.shards.append(Shard("a", path.stem, path))
    assert empty.prepare()["documents"] == 0 and empty.kept() == set()
