"""Datasets of tokens beside Hugging Face's ids, read by Megatron; the same whatever was killed."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from foundation.files import read_json, sha256_file
from foundation.manifest import check_manifest, read_manifest
from foundation.tokenizer import END_OF_TEXT, find_tokenizer_files, load_tokenizer
from tests.conversion.training_checkpoint import write_byte_tokenizer
from tests.training.corpus.stages import ThisProcess, corpus_config, documents, work_on, write_shards
from training.corpus.stage import Shard, Work
from training.corpus.tokenise import Tokenise
from training.data.megatron_index import indexed_dataset
from training.data.prepare import held_out

TEXTS = {
    "books": [f"The other day number {number}: naïve café — “quotes”\n\n\t日本語 🙂" for number in range(90)],
    "web": [f"then {number} {END_OF_TEXT} there" for number in range(40)],
}
SEED = 7


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "bpe"
    folder.mkdir()
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    return [
        s for name, of in TEXTS.items() for s in write_shards(tmp_path / "in", name, documents(*of, dataset=name), 3)
    ]


def stage(tokenizer: Path, **settings: Any) -> Tokenise:
    config = {"tokenizer": str(tokenizer), "validation_percent": 10.0, **settings}
    return Tokenise(corpus_config(list(TEXTS), seed=SEED, tokenise=config))


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "scratch" not in path.parts
    }


def read(prefix: Path) -> list[list[int]]:
    index = indexed_dataset().IndexedDataset(str(prefix))
    return [index[number].tolist() for number in range(len(index))]


def test_every_document_is_there_in_its_order_and_split(tokenizer: Path, shards: list[Shard], tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage(tokenizer).run(work_on(shards, out))
    theirs = load_tokenizer(find_tokenizer_files(tokenizer))
    for name, texts in TEXTS.items():
        expected: dict[str, list[list[int]]] = {"train": [], "validation": []}
        for number, text in enumerate(texts):
            split = "validation" if held_out(f"{name}/{number}", 10.0, SEED) else "train"
            expected[split].append([*theirs.encode(text, add_special_tokens=False).ids, 258])
        assert 0 < len(expected["validation"]) < len(texts) / 3
        assert {split: read(out / name / split) for split in expected} == expected
        manifest = read_manifest(out / name)
        assert manifest is not None
        assert check_manifest(out / name, manifest) == []
        counted = {s: {"documents": len(d), "tokens": sum(map(len, d))} for s, d in expected.items()}
        assert manifest.about["splits"] == counted
        assert (manifest.format, manifest.about["vocab_size"]) == ("mtnlg-tokens", 259)
        summary = read_json(out / "summary.json")["datasets"][name]
        assert summary["documents_in"] == summary["documents_out"] == len(texts)
        assert summary["bytes_in"] == sum(len(text.encode()) for text in texts)
        assert summary["bytes_out"] == 2 * sum(counts["tokens"] for counts in counted.values())
        assert summary["counts"]["validation tokens"] == counted["validation"]["tokens"]


def test_the_split_is_decided_by_seed_and_id_and_not_by_the_shards(tokenizer: Path, tmp_path: Path) -> None:
    table = documents(*TEXTS["books"], dataset="books")
    found = []
    for cut in (1, 4):
        shards = write_shards(tmp_path / f"in-{cut}", "books", table, cut)
        stage(tokenizer).run(work_on(shards, tmp_path / f"out-{cut}"))
        found.append({n: h for n, h in hashes(tmp_path / f"out-{cut}").items() if n.endswith((".bin", ".idx"))})
    assert len(found[0]) == 4
    assert found[0] == found[1]


class KilledError(Exception):
    """The end of a process, as a test can have it."""


class EndsAfter(ThisProcess):
    """An engine whose work ends with the process after so many items."""

    def __init__(self, items: int) -> None:
        self.items = items

    def map(self, function: Any, items: Any) -> Any:
        for number, item in enumerate(items):
            if number == self.items:
                raise KilledError
            yield function(item)


def test_killed_anywhere_the_end_is_the_same(tokenizer: Path, shards: list[Shard], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    stage(tokenizer).run(work_on(shards, whole))
    expected = hashes(whole)
    for items in (0, 2, 5):
        out = tmp_path / f"killed-{items}"
        with pytest.raises(KilledError):
            stage(tokenizer).run(Work(shards, out, EndsAfter(items), lambda what, done, total: None))
        assert len(list((out / "scratch" / "parts").rglob("*.json"))) == items
        stage(tokenizer).run(work_on(shards, out))
        assert hashes(out) == expected
    # While the datasets are joined: one is finished, of the other the index is missing.
    out = tmp_path / "killed-joining"
    with pytest.raises(KilledError):
        stage(tokenizer).run(Work(shards, out, EndsAfter(5), lambda what, done, total: None))
    shutil.copytree(whole / "books", out / "books")
    shutil.rmtree(out / "scratch" / "parts" / "books")
    (out / "web").mkdir()
    (out / "web" / "train.bin").write_bytes(b"half")
    stage(tokenizer).run(work_on(shards, out))
    assert hashes(out) == expected
    assert not (out / "scratch" / "parts").exists()


def test_a_part_counts_from_its_record_on(tokenizer: Path, shards: list[Shard], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KilledError):
        stage(tokenizer).run(Work(shards, out, EndsAfter(3), lambda what, done, total: None))
    records = sorted((out / "scratch" / "parts").rglob("*.json"))
    records[0].unlink()
    records[0].with_name(f"{records[0].stem}.train.bin").write_bytes(b"half")
    stage(tokenizer).run(work_on(shards, out))
    stage(tokenizer).run(work_on(shards, tmp_path / "whole"))
    assert hashes(out) == hashes(tmp_path / "whole")


def test_a_dataset_of_which_nothing_is_left_has_an_empty_index(tokenizer: Path, tmp_path: Path) -> None:
    empty = documents("gone", dataset="books").slice(1)
    stage(tokenizer).run(work_on(write_shards(tmp_path / "in", "books", empty, 1), tmp_path / "out"))
    manifest = read_manifest(tmp_path / "out" / "books")
    assert manifest is not None
    assert manifest.about["splits"]["train"] == {"documents": 0, "tokens": 0}
    assert (tmp_path / "out" / "books" / "train.bin").stat().st_size == 0


def test_identity_follows_the_tokenizer_s_bytes_the_seed_and_the_share(tokenizer: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tokenizer, tmp_path / "moved")
    assert stage(moved).identity() == stage(tokenizer).identity()
    assert stage(tokenizer, validation_percent=11.0).identity() != stage(tokenizer).identity()
    (moved / "merges.txt").write_text("#version: 0.2\nt h\n", encoding="utf-8")
    assert stage(moved).identity() != stage(tokenizer).identity()
