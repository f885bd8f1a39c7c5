"""Text to token indexes, checked with Megatron's reader and Hugging Face's GPT-2 tokenizer."""

import gzip
import json
from pathlib import Path

import pytest
from transformers import GPT2Tokenizer

from foundation.errors import UserError
from foundation.manifest import MANIFEST, check_manifest, read_manifest
from foundation.tokenizer import find_tokenizer_files, load_tokenizer
from training.data.megatron_index import indexed_dataset
from training.data.prepare import prepare

TEXTS = [f"Document {number}: naïve café — “quotes”, 3.14,\n\n\tdef f(x): return x**{number}" for number in range(200)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:100]))
    with gzip.open(folder / "b.jsonl.gz", "wt") as handle:
        handle.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS[100:199])
    (folder / "deeper" / "c.txt").write_text(TEXTS[199])
    (folder / "ignored.bin").write_bytes(b"\x00\x01")
    return folder


def decoded(prefix: Path) -> list[str]:
    tokenizer = load_tokenizer(find_tokenizer_files())
    index = indexed_dataset().IndexedDataset(str(prefix))
    assert all(index[number][-1] == 50256 for number in range(len(index)))
    return [tokenizer.decode(index[number][:-1].tolist()) for number in range(len(index))]


def test_every_document_comes_back_once(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    manifest = prepare(out, [str(corpus)], validation_percent=10.0)
    train, validation = decoded(out / "train"), decoded(out / "validation")
    assert sorted(train + validation) == sorted(TEXTS)
    assert 5 <= len(validation) <= 40
    assert manifest.about["splits"]["train"]["documents"] == len(train)
    assert manifest.about["vocab_size"] == 50257
    assert check_manifest(out, manifest) == []


def test_ids_are_gpt2_s() -> None:
    files = find_tokenizer_files()
    theirs = GPT2Tokenizer(vocab=str(files.vocab), merges=str(files.merges))
    ours = load_tokenizer(files)
    for text in [*TEXTS[:3], "  leading", "trailing  ", "日本語 🙂", "I'll we've DON'T", "\r\n \u00a0x"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text


def test_finished_output_is_reused_and_changed_input_is_not(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    prepare(out, [str(corpus)])
    before = (out / "train.bin").stat().st_mtime_ns
    prepare(out, [str(corpus)])
    assert (out / "train.bin").stat().st_mtime_ns == before
    (corpus / "new.txt").write_text("one more")
    prepare(out, [str(corpus)])
    assert "one more" in decoded(out / "train") + decoded(out / "validation")


def test_a_failure_leaves_nothing_that_looks_whole(corpus: Path, tmp_path: Path) -> None:
    (corpus / "z.jsonl").write_text('{"text": "fine"}\n{"text": 5}\n')
    out = tmp_path / "tokens"
    with pytest.raises(UserError, match=r'z\.jsonl, line 2: expected an object with a "text" string'):
        prepare(out, [str(corpus)])
    assert not (out / MANIFEST).exists()
    assert read_manifest(out) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.txt", "no file or folder at missing.txt"),
        ("./missing", r"no file or folder at missing"),
        ("someone/dataset", "the dataset hub cannot be reached"),
    ],
)
def test_sources_that_cannot_be_read(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "tokens", [source])


def test_an_empty_folder_and_an_unknown_suffix_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.pdf").write_bytes(b"%PDF")
    with pytest.raises(UserError, match="holds no text"):
        prepare(tmp_path / "tokens", [str(tmp_path / "empty")])
    with pytest.raises(UserError, match=r"cannot read .*x\.pdf"):
        prepare(tmp_path / "tokens", [str(tmp_path / "x.pdf")])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not hold vocab.json and merges.txt"):
        find_tokenizer_files(tmp_path)
