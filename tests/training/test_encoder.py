"""Token ids beside Hugging Face's tokenizers, and Megatron's files byte for byte."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from foundation.errors import UserError
from foundation.tokenizer import END_OF_TEXT, TokenizerFiles, find_tokenizer_files, load_tokenizer
from tests.conversion.training_checkpoint import write_byte_tokenizer
from training.data.encoder import Encoder, open_encoder
from training.data.megatron_index import indexed_dataset
from training.data.token_writer import TokenWriter, token_dtype

TEXTS = [
    "",
    " ",
    "  leading and trailing  ",
    "I'll we've DON'T it's 'quoted' x'y",
    "naïve café — “quotes”, 3.14,\n\n\tdef f(x): return x**2",
    "日本語 🙂👩‍👩‍👧 Ελληνικά עברית ١٢٣ Ⅷ ½",
    "\r\n \u00a0x\u2003y\u200bz\x1c\x1d!\x1c? \ufeff",
    "tab\t\ttab   three spaces\n\n\n\nlines ",
    f"before{END_OF_TEXT}after {END_OF_TEXT}{END_OF_TEXT}\n",
    "<|endoftext| >",
]


def assert_equal_ids(encoder: Encoder, tokenizer: Tokenizer, text: str) -> None:
    assert encoder.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text[:80]


def trained(folder: Path, vocab_size: int, seed: int = 0) -> TokenizerFiles:
    """A BPE trained on random words, whose ids are in no order."""
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdeé🙂 ", k=generator.randint(1, 9))) for _ in range(400)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((" ".join(generator.choices(words, k=50)) for _ in range(50)), trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids = list(range(len(vocabulary)))
    generator.shuffle(ids)
    shuffled = {token: ids[number] for token, number in vocabulary.items()} | {END_OF_TEXT: len(ids)}
    (folder / "vocab.json").write_text(json.dumps(shuffled), encoding="utf-8")
    return find_tokenizer_files(folder)


def test_ids_are_those_of_hugging_face() -> None:
    files = find_tokenizer_files()
    encoder, tokenizer = open_encoder(files), load_tokenizer(files)
    assert (encoder.is_fast, encoder.vocab_size, encoder.end) == (True, 50257, 50256)
    for text in TEXTS:
        assert_equal_ids(encoder, tokenizer, text)
    batch = encoder.encode_batch(TEXTS, threads=3)
    assert [ids.tolist() for ids in batch] == [encoder.encode(text).tolist() for text in TEXTS]


def test_ids_are_those_of_hugging_face_for_every_character_of_most_scripts() -> None:
    files = find_tokenizer_files()
    encoder, tokenizer = open_encoder(files), load_tokenizer(files)
    for first in [*range(0, 0x3400, 0x100), 0xA700, 0xFB00, 0xFF00, 0x10300, 0x1D400, 0x1F600, 0x31300, 0xE0000]:
        characters = [chr(code) for code in range(first, first + 0x100)]
        assert_equal_ids(encoder, tokenizer, "".join(f"a{c}b 1{c}2 .{c}.  {c}x" for c in characters))


def test_long_documents_are_encoded_in_stretches_with_the_same_ids() -> None:
    files = find_tokenizer_files()
    encoder, tokenizer = open_encoder(files), load_tokenizer(files)
    generator = random.Random(1)
    parts = ["word", "I'm", " ", "  ", "\n", "\n\n", "\t", "\x1c", "7", "...", "é", "\u2003", f"{END_OF_TEXT}", " x"]
    assert_equal_ids(encoder, tokenizer, "".join(generator.choices(parts, k=150_000)))
    assert_equal_ids(encoder, tokenizer, "x y" + " " * 1_000_100 + "z")


@pytest.mark.parametrize("seed", range(3))
def test_any_trained_vocabulary_is_fast_and_right_whatever_its_ids(tmp_path: Path, seed: int) -> None:
    files = trained(tmp_path / "bpe", 700, seed)
    encoder, tokenizer = open_encoder(files), load_tokenizer(files)
    assert encoder.is_fast
    generator = random.Random(seed)
    for _ in range(200):
        assert_equal_ids(encoder, tokenizer, "".join(generator.choices("abcdeé🙂 \n1'", k=60)))
    assert_equal_ids(encoder, tokenizer, f"ab{END_OF_TEXT}cd")


def test_a_vocabulary_that_tiktoken_would_get_wrong_is_left_to_the_slow_library(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    assert open_encoder(find_tokenizer_files(tmp_path)).is_fast
    # "abc" is ab + c alone, but bc comes first: only tiktoken would put a + bc together.
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    merges = ["b c", "a b", "ab c"]
    for merge in merges:
        vocabulary[merge.replace(" ", "")] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    files = find_tokenizer_files(tmp_path)
    encoder = open_encoder(files)
    assert not encoder.is_fast
    assert_equal_ids(encoder, load_tokenizer(files), "abc xabcab")
    assert [encoder.encode("abc").size, encoder.encode("bc").size] == [2, 1]


def test_a_vocabulary_without_all_bytes_is_left_to_the_slow_library(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary["q"]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    files = find_tokenizer_files(tmp_path)
    encoder = open_encoder(files)
    assert not encoder.is_fast
    assert_equal_ids(encoder, load_tokenizer(files), "the quick")


def test_merges_of_another_kind_of_bpe_are_refused(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    vocabulary |= {"▁": 300, "▁t": 301}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n▁ t\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"merges\.txt is not of a byte-level BPE: it merges the character '▁'"):
        open_encoder(find_tokenizer_files(tmp_path))


def test_lone_surrogates_become_replacement_characters() -> None:
    encoder = open_encoder(find_tokenizer_files())
    assert encoder.encode("a\ud800b").tolist() == encoder.encode("a\ufffdb").tolist()


@pytest.mark.parametrize("vocab_size", [300, 65_499, 65_500, 200_000])
def test_files_are_byte_for_byte_megatron_s(tmp_path: Path, vocab_size: int) -> None:
    megatron = indexed_dataset()
    assert token_dtype(vocab_size) == megatron.DType.optimal_dtype(vocab_size)
    generator = np.random.default_rng(0)
    documents = [generator.integers(0, vocab_size, size).astype(np.uint32) for size in (5, 1, 0, 300, 17)]
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=token_dtype(vocab_size).type)
    for document in documents:
        builder.add_document(document.astype(np.int64).tolist(), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    with TokenWriter(tmp_path / "ours", token_dtype(vocab_size)) as writer:
        writer.add(documents[:2])
        part = tmp_path / "part"
        part.write_bytes(np.concatenate(documents[2:]).astype(token_dtype(vocab_size)).tobytes())
        writer.append(part, np.array([len(document) for document in documents[2:]], dtype=np.int32))
    assert (writer.documents, writer.tokens) == (5, 323)
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"ours.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


def test_no_documents_have_an_index_and_a_failure_leaves_none(tmp_path: Path) -> None:
    with TokenWriter(tmp_path / "none", token_dtype(300)):
        pass
    assert (tmp_path / "none.idx").stat().st_size == 34 + 8
    with pytest.raises(RuntimeError), TokenWriter(tmp_path / "broken", token_dtype(300)) as writer:
        writer.add([np.array([1, 2], dtype=np.uint32)])
        raise RuntimeError
    assert not (tmp_path / "broken.idx").exists()
