"""The quality stage: a draw of its own for each document, a classifier that is the same however the corpus is cut."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foundation.errors import UserError
from foundation.manifest import read_manifest
from tests.training.corpus.stages import SHARD, corpus_config, documents, texts, work_on, write_shards
from training.corpus.quality.classifier import MODEL, Classifier, checked_manifest
from training.corpus.quality.config import ClassifierConfig
from training.corpus.quality.examples import Examples, Origin, Sampler, requests, words_line
from training.corpus.quality.stage import Quality, Scorer, pareto_draw
from training.corpus.quality.train import settings_from, train_from_files
from training.corpus.stage import Outcome, Shard

GOOD_WORDS = ["the", "of", "river", "castle", "century", "was", "built", "by", "king", "treaty", "between", "empire"]
OTHER_WORDS = ["buy", "now", "click", "here", "free", "offer", "best", "price", "the", "of", "cart", "login"]
SMALL = {"buckets": 1000, "dimension": 8, "epochs": 20, "learning_rate": 0.5}


def prose(words: Sequence[str], count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=40)) + "." for _ in range(count)]


def shards(folder: Path, cuts: int) -> list[Shard]:
    """150 documents of a good dataset, 300 of the web, of which every third is good."""
    web = prose(OTHER_WORDS, 300, 2)
    web[::3] = prose(GOOD_WORDS, 100, 3)
    good = prose(GOOD_WORDS, 150, 1)
    return [
        *write_shards(folder, "books", documents(*good, dataset="books"), cuts),
        *write_shards(folder, "web", documents(*web, dataset="web"), cuts),
    ]


def make_stage(**quality: Any) -> Quality:
    return Quality(corpus_config(["books", "web"], quality={"training": SMALL, **quality}))


def run_stage(stage: Quality, folder: Path, cuts: int) -> dict[str, Outcome]:
    """Train and score; outcomes put together by dataset."""
    given = shards(folder / "input", cuts)
    scratch = folder / "scratch"
    stage.prepare(work_on(given, folder), scratch)
    apply = stage.open(scratch)
    done: dict[str, Outcome] = {}
    for shard in given:
        outcome = apply(shard, pa.parquet.read_table(shard.path))
        whole = done.setdefault(shard.dataset, Outcome(outcome.documents.slice(0, 0), outcome.dropped.slice(0, 0), {}))
        whole.documents = pa.concat_tables([whole.documents, outcome.documents])
        whole.dropped = pa.concat_tables([whole.dropped, outcome.dropped])
        whole.counts = {
            name: whole.counts.get(name, 0) + outcome.counts.get(name, 0) for name in {*whole.counts, *outcome.counts}
        }
    return done


@pytest.mark.parametrize("alpha", [3.0, 9.0])
def test_draws_are_numpy_s_pareto(alpha: float) -> None:
    draws = np.sort([pareto_draw(alpha, 1, f"set/{number}") for number in range(4000)])
    for x in (0.05, 0.1, 0.5, 1.0):
        assert np.mean(draws > x) == pytest.approx((1 + x) ** -alpha, abs=0.03)
    numpys = np.sort(np.random.default_rng(0).pareto(alpha, 4000))
    assert np.abs(draws[:3900] - numpys[:3900]).max() < 0.1


def test_a_draw_belongs_to_the_document_and_the_seed() -> None:
    assert pareto_draw(3, 1, "a/1") == pareto_draw(3, 1, "a/1")
    assert len({pareto_draw(3, 1, "a/1"), pareto_draw(3, 2, "a/1"), pareto_draw(3, 1, "a/2")}) == 3


class Fixed(Classifier):
    """Scores a text by the number that it is."""

    def __init__(self) -> None:
        super().__init__(None, 1)

    def scores(self, texts: Sequence[str]) -> list[float]:
        return [float(text) for text in texts]


@pytest.mark.parametrize(("score", "share"), [("0.0", 0.125), ("0.5", 0.296), ("0.9", 0.751), ("1.0", 1.0)])
def test_kept_shares_are_the_paper_s(score: str, share: float) -> None:
    outcome = Scorer(Fixed(), frozenset(["set"]), 3.0, 5)(SHARD, documents(*[score] * 4000))
    assert len(outcome.documents) / 4000 == pytest.approx(share, abs=0.02)
    assert len(outcome.documents) + outcome.counts.get("rule: low score", 0) == 4000
    assert sum(count for name, count in outcome.counts.items() if name.startswith("score ")) == 4000
    assert sum(outcome.side["scores"]["kept"].to_pylist()) == len(outcome.documents)


def test_the_trained_stage_keeps_the_good_and_is_the_same_however_it_is_cut(tmp_path: Path) -> None:
    stage = make_stage(positives=["books"])
    whole, cut = run_stage(stage, tmp_path / "whole", 1), run_stage(stage, tmp_path / "cut", 7)
    for dataset in ("books", "web"):
        assert cut[dataset] == whole[dataset]
    assert whole["books"].counts == {"kept": 150, "not scored": 150}
    good = [document["id"] for document in whole["web"].documents.to_pylist() if "castle" in document["text"]]
    # Of the others: (2 - s)^-3 is 0.13 at a score of 0, and 0.5 at 150 positives to 50 negatives of the same kind.
    assert 35 < len(good) < 70
    assert len(whole["web"].documents) - len(good) < 45
    about = read_manifest(tmp_path / "cut" / "scratch" / "classifier")
    assert about is not None
    assert about == read_manifest(tmp_path / "whole" / "scratch" / "classifier")
    assert about.about["examples"] == 150
    assert about.about["held_out"]["accuracy"] > 0.75


def test_drawing_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = shards(tmp_path / "input", 3)
    drawn: list[str] = []
    tables = Sampler._tables

    def counted(sampler: Sampler, origin: Origin, rate: float) -> Iterator[pa.Table]:
        drawn.append(f"{origin.dataset}/{origin.name}")
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return tables(sampler, origin, rate)

    monkeypatch.setattr(Sampler, "_tables", counted)
    stage, scratch = make_stage(positives=["books"]), tmp_path / "scratch"
    with pytest.raises(KeyboardInterrupt):
        stage.prepare(work_on(given, tmp_path), scratch)
    stage.prepare(work_on(given, tmp_path), scratch)
    assert len(drawn) == 7
    assert sorted(set(drawn)) == sorted(f"{shard.dataset}/{shard.name}" for shard in given)
    assert [path.name for path in scratch.iterdir()] == ["classifier"]
    stage.prepare(work_on(given, tmp_path), scratch)
    assert len(drawn) == 7


def test_files_may_be_the_positives_and_identity_follows_them(tmp_path: Path) -> None:
    named = tmp_path / "good.jsonl"
    lines = [f'{{"text": "{text}"}}\n' for text in prose(GOOD_WORDS, 60, 9)]
    named.write_text("".join(lines), encoding="utf-8")
    stage = make_stage(positives=[str(named)])
    before = stage.identity()
    done = run_stage(stage, tmp_path, 2)
    assert "not scored" not in done["books"].counts
    assert len(done["books"].documents) / 150 > 1.5 * len(done["web"].documents) / 300
    named.write_text("".join(lines[1:]), encoding="utf-8")
    assert make_stage(positives=[str(named)]).identity() != before


def test_without_a_classifier_all_goes_on() -> None:
    stage = make_stage()
    outcome = stage.open(Path("nowhere"))(SHARD, documents("a", "b"))
    assert texts(outcome) == ["a", "b"]
    assert stage.identity() == {"scored": []}


def test_training_by_the_verb_then_used_by_the_stage(tmp_path: Path) -> None:
    write_shards(tmp_path / "clean", "web", documents(*prose(OTHER_WORDS, 120, 2)), 3)
    # Of a stage's folder only what goes on is read.
    write_shards(tmp_path / "clean" / "dropped", "web", documents(*prose(GOOD_WORDS, 400, 4)), 1)
    (tmp_path / "good.txt").write_text("", encoding="utf-8")
    write_shards(tmp_path / "good", "books", documents(*prose(GOOD_WORDS, 90, 1)), 1)
    sources = ([str(tmp_path / "good")], [str(tmp_path / "clean")])
    config = settings_from([f"{key}={value}" for key, value in SMALL.items()])
    first = train_from_files(tmp_path / "first", *sources, config, 7)
    second = train_from_files(tmp_path / "second", *sources, config, 7)
    assert first == second
    assert first != train_from_files(tmp_path / "third", *sources, config, 8)
    assert first.about["found"] == {"positives": 90, "negatives": 120}
    assert first.about["examples"] == 90
    assert (tmp_path / "first" / "precision_recall.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []

    stage = make_stage(classifier=str(tmp_path / "first"))
    assert stage.identity()["classifier"] == first.files[MODEL].sha256
    scores = Classifier.load(tmp_path / "first").scores([*prose(GOOD_WORDS, 5, 11), *prose(OTHER_WORDS, 5, 12)])
    assert min(scores[:5]) > 0.5 > max(scores[5:])
    (tmp_path / "first" / MODEL).write_bytes(b"changed")
    with pytest.raises(UserError, match="bytes instead of"):
        checked_manifest(tmp_path / "first")


def test_what_cannot_be_trained_is_said_in_a_line(tmp_path: Path) -> None:
    write_shards(tmp_path, "web", documents(*prose(OTHER_WORDS, 5, 2)), 1)
    with pytest.raises(UserError, match="5 positives and 5 other documents are too few"):
        train_from_files(tmp_path / "out", [str(tmp_path / "web")], [str(tmp_path / "web")], ClassifierConfig(), 1)
    with pytest.raises(UserError, match=r"no file or folder at .*gone\.txt"):
        train_from_files(tmp_path / "out", [str(tmp_path / "gone.txt")], [], ClassifierConfig(), 1)
    with pytest.raises(UserError, match="KEY one of word_ngrams"):
        settings_from(["epoch=3"])
    with pytest.raises(UserError, match="epochs: "):
        settings_from(["epochs=0"])


def test_few_documents_are_seen_more_often() -> None:
    assert [ClassifierConfig().epochs_over(count) for count in (10, 500, 4000, 10**6)] == [100, 40, 5, 5]
    assert ClassifierConfig(epochs=3).epochs_over(10) == 3


def test_a_positive_dataset_cannot_skip_the_stage() -> None:
    datasets = [{"name": "books", "paths": ["a"], "skip": ["quality"]}, {"name": "web", "paths": ["b"]}]
    config = corpus_config(quality={"positives": ["books"]}).model_copy(
        update={"datasets": tuple(type(corpus_config().datasets[0]).model_validate(dataset) for dataset in datasets)}
    )
    with pytest.raises(UserError, match="books, which skips the stage"):
        Quality(config)


def test_no_more_is_drawn_than_can_be_used(tmp_path: Path) -> None:
    web = write_shards(tmp_path, "web", documents(*(["text"] * 5000), dataset="web"), 5)
    books = write_shards(tmp_path, "books", documents(*(["text"] * 200), dataset="books"), 2)
    origins = [Origin(shard.dataset, shard.name, str(shard.path), shard in books) for shard in (*web, *books)]
    asked = requests(origins, 1000)
    files = [tmp_path / Sampler(tmp_path, 10, 1)(request) for request in asked]
    examples = Examples(files, 1000)
    assert (examples.count, examples.positives) == (200, 200)
    assert 250 < examples.negatives < 400
    rows = list(examples)
    assert [key for key, _, _ in rows] == sorted(key for key, _, _ in rows)
    assert sum(good for _, good, _ in rows) == len(rows) - 200 == 200
    # Of either kind those of the lowest keys, so that what was left out of the drawing would not have been taken.
    cut = Examples(files, 50)
    assert [row for row in cut if row[1]] == [row for row in rows if row[1]][:50]
    assert [row for row in cut if not row[1]] == [row for row in rows if not row[1]][:50]


def test_examples_are_sorted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    web = write_shards(tmp_path, "web", documents(*prose(OTHER_WORDS, 300, 1), dataset="web"), 4)
    origins = [Origin(shard.dataset, shard.name, str(shard.path), shard.name < "00002") for shard in web]
    files = [tmp_path / Sampler(tmp_path, 10, 1)(request) for request in requests(origins, 1000)]
    whole = list(Examples(files, 120))
    monkeypatch.setattr("training.corpus.quality.examples._MEMORY_BYTES", 5000)
    assert list(Examples(files[::-1], 120)) == whole
    assert len(whole) == 240


def test_what_the_classifier_reads() -> None:
    assert words_line("It's  The\nEND.", 10) == "it ' s the end ."
    assert words_line("one two three", 2) == "one two"
