"""The tasks' n-grams found beside a plain program's, cuts worked out by hand, and the stage on planted texts."""

import json
import random
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import UserError
from tests.training.corpus.stages import corpus_config, documents, texts, work_on, write_shards
from training.corpus.decontaminate.config import DecontaminateConfig
from training.corpus.decontaminate.cutting import find_cuts, pieces
from training.corpus.decontaminate.ngrams import Match, NgramIndex, read_texts
from training.corpus.decontaminate.stage import Decontaminate
from training.corpus.decontaminate.words import Words, canonical
from training.corpus.parquet import read_parquet
from training.corpus.stage import Outcome, Shard

WORDS = ["river", "house", "Ship", "carried", "tea", "iron", "bank", "café", "owner", "_x", "1894", "İstanbul", "ΣΑΣ"]
MARKS = [" ", " ", " ", ", ", ". ", "! ", "\n", " — ", "-"]


def prose(generator: random.Random, count: int) -> str:
    """So many words with marks between them."""
    return "".join(generator.choice(WORDS) + generator.choice(MARKS) for _ in range(count)).strip()


def numbered(first: int, count: int, word: str = "w") -> str:
    """Words that are found nowhere else."""
    return " ".join(f"{word}{number}" for number in range(first, first + count))


def plain_words(text: str) -> list[tuple[str, int, int]]:
    return [(canonical(found.group()), found.start(), found.end()) for found in re.finditer(r"\w+", text)]


def plain_ngrams(texts: Iterable[tuple[str, str]], least: int, most: int) -> dict[str, set[str]]:
    """What filter_ngrams.py of Megatron-LM enters, with the tasks."""
    found: dict[str, set[str]] = {}
    for task, text in texts:
        words = [word for word, _, _ in plain_words(text)]
        if least <= len(words) < most:
            found.setdefault(" ".join(words), set()).add(task)
        for first in range(len(words) - most + 1):
            found.setdefault(" ".join(words[first : first + most]), set()).add(task)
    return found


def plain_search(text: str, ngrams: Iterable[str]) -> set[tuple[int, int, str]]:
    words, found, known = plain_words(text), set(), set(ngrams)
    for first in range(len(words)):
        for end in range(first + 1, len(words) + 1):
            ngram = " ".join(word for word, _, _ in words[first:end])
            if ngram in known:
                found.add((words[first][1], words[end - 1][2], ngram))
    return found


def test_words_are_those_of_the_pattern_and_hash_by_what_they_are() -> None:
    generator = random.Random(0)
    examples = [prose(generator, generator.randint(0, 40)) for _ in range(30)] + ["", "...", "a", "\ud800 b", "é\u0301"]
    words = Words.of(examples)
    spans = [
        (int(text), int(start - words.text_starts[text]), int(end - words.text_starts[text]))
        for text, start, end in zip(words.text_of, words.starts, words.ends, strict=True)
    ]
    expected = [(n, start, end) for n, text in enumerate(examples) for _, start, end in plain_words(text)]
    assert spans == expected
    names = [canonical(examples[text][start:end]) for text, start, end in spans]
    assert len({*zip(names, words.hashes.tolist(), strict=True)}) == len(set(names)) == len(set(words.hashes.tolist()))


def test_every_character_is_of_a_word_as_re_has_it_and_lower_case_as_python_has_it() -> None:
    characters = [chr(code) for code in range(0, sys.maxunicode + 1, 3)] + [chr(code) for code in range(0x3000)]
    words = Words.of(characters)
    pattern = re.compile(r"\w")
    of_words = [number for number, character in enumerate(characters) if pattern.match(character)]
    assert words.text_of.tolist() == of_words
    by_name: dict[str, set[int]] = {}
    for number, found in zip(of_words, words.hashes.tolist(), strict=True):
        by_name.setdefault(canonical(characters[number]), set()).add(found)
    assert all(len(found) == 1 for found in by_name.values())
    assert len(set(words.hashes.tolist())) == len(by_name)


@pytest.mark.parametrize(("least", "most"), [(3, 5), (2, 2), (8, 13), (1, 4)])
def test_every_ngram_is_found_where_a_plain_program_finds_it(least: int, most: int) -> None:
    generator = random.Random(most)
    asked = [
        (generator.choice(["boolq", "piqa", "wic"]), prose(generator, generator.randint(1, 3 * most)))
        for _ in range(60)
    ]
    expected = plain_ngrams(asked, least, most)
    index = NgramIndex.of(asked, least, most)
    assert {index.ngram(number): set(index.tasks_of(number)) for number in range(len(index))} == expected
    examples = [prose(generator, generator.randint(0, 60)) for _ in range(40)]
    examples += [f"{prose(generator, 5)} {text.upper()} {prose(generator, 5)}" for _, text in asked]
    found: dict[int, set[tuple[int, int, str]]] = {}
    for document, match in index.search(examples):
        found.setdefault(document, set()).add((match.start, match.end, index.ngram(match.ngram)))
    assert found == {n: hits for n, text in enumerate(examples) if (hits := plain_search(text, expected))}


def test_ngrams_do_not_reach_over_the_end_of_a_document_or_a_text() -> None:
    index = NgramIndex.of([("a", "one two three"), ("a", "four five six")], 2, 4)
    assert sorted(index.ngram(number) for number in range(len(index))) == ["four five six", "one two three"]
    assert list(index.search(["zero one two", "three four", "five six"])) == []
    assert [document for document, _ in index.search(["x", "One, two -- THREE!", "y"])] == [1]


def test_batches_of_documents_are_counted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    index = NgramIndex.of([("a", "one two three")], 3, 4)
    many = ["one two three" if number % 7 == 3 else "one two" for number in range(50)]
    monkeypatch.setattr("training.corpus.decontaminate.ngrams._BATCH_CHARACTERS", 40)
    assert [document for document, _ in index.search(many)] == list(range(3, 50, 7))


def test_no_texts_have_no_ngrams() -> None:
    index = NgramIndex.of([("a", "too short")], 8, 13)
    assert len(index) == 0
    assert list(index.search(["too short and so on and on and on for ever"])) == []


TEXT = "One is here. Two is here. Three is MATCH here. Four is here. Five is here."


@pytest.mark.parametrize(
    ("margin", "removed"),
    [
        (0, [" Three is MATCH here."]),
        (11, [" Three is MATCH here. Four is here."]),
        (18, [" Two is here. Three is MATCH here. Four is here."]),
        (200, [TEXT]),
    ],
)
def test_a_cut_ends_at_sentences(margin: int, removed: list[str]) -> None:
    start = TEXT.index("MATCH")
    cuts = find_cuts(TEXT, [Match(start, start + 5, 0)], margin)
    assert [TEXT[cut.start : cut.end] for cut in cuts] == removed


def test_without_a_sentence_end_the_cut_goes_to_the_document_s() -> None:
    text = "no end of a sentence anywhere " * 50
    assert [(cut.start, cut.end) for cut in find_cuts(text, [Match(700, 710, 0)], 10)] == [(0, len(text))]


def test_cuts_side_by_side_are_one_and_others_are_not() -> None:
    text = "".join(f"Sentence {number:02} is here. " for number in range(40))
    at = [text.index(f"Sentence {number:02}") for number in range(40)]
    matches = [Match(at[n], at[n] + 8, n) for n in (3, 4, 5, 20)]
    cuts = find_cuts(text, matches, 0)
    assert [[match.ngram for match in cut.matches] for cut in cuts] == [[3, 4, 5], [20]]
    assert [text[cut.start : cut.end].split(".")[0].strip() for cut in cuts] == [
        "Sentence 03 is here",
        "Sentence 20 is here",
    ]
    left, short = pieces(text, cuts, DecontaminateConfig(min_piece=62))
    assert [piece.split()[1] for piece in left] == ["06", "21"]
    assert short == 1
    assert len(pieces(text, cuts, DecontaminateConfig(min_piece=61))[0]) == 3


def test_every_match_has_its_margin() -> None:
    text = f"{'x' * 50}. aaa bbb. ccc ddd. eee. {'y' * 50}"
    matches = [Match(text.index(words), text.index(words) + len(words), 0) for words in ("aaa bbb", "bbb. ccc")]
    (cut,) = find_cuts(text, matches, 4)
    assert text[cut.start : cut.end] == f"{'x' * 50}. aaa bbb. ccc ddd."
    (cut,) = find_cuts(text, matches, 2)
    assert text[cut.start : cut.end] == " aaa bbb. ccc ddd."


class Run:
    """The stage on documents, in this process."""

    def __init__(self, folder: Path, asked: Sequence[tuple[str, str]], **settings: Any) -> None:
        self.scratch = folder / "stage" / "scratch"
        self.path = folder / "texts.jsonl"
        folder.mkdir(exist_ok=True)
        lines = [json.dumps({"task": task, "field": "text", "text": text}) for task, text in asked]
        self.path.write_text("\n".join(lines), encoding="utf-8")
        self.stage = Decontaminate(corpus_config(decontaminate={"texts": str(self.path), **settings}))
        self.folder = folder

    def __call__(self, *given: str, shards: int = 2) -> Outcome:
        """All documents' outcome, as one."""
        table = documents(*given)
        made = write_shards(self.folder / "input", "set", table, shards)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.stage.prepare(work_on(made, self.folder / "stage"), self.scratch)
        apply = self.stage.open(self.scratch)
        outcomes = [apply(shard, read_parquet(shard.path)) for shard in made]
        return join(outcomes)


def join(outcomes: Sequence[Outcome]) -> Outcome:
    import pyarrow as pa

    counts: dict[str, int] = {}
    for outcome in outcomes:
        for name, count in outcome.counts.items():
            counts[name] = counts.get(name, 0) + count
    return Outcome(
        pa.concat_tables(outcome.documents for outcome in outcomes),
        pa.concat_tables(outcome.dropped for outcome in outcomes),
        counts,
        {"cuts": pa.concat_tables(outcome.side["cuts"] for outcome in outcomes)},
    )


QUESTION = "Is the river wider than the old bridge that nobody ever crossed in winter before the flood"
SHORT = "Nine words are enough to be looked for here"
FILLER = " ".join(f"Filler sentence number {number} says nothing." for number in range(30))


def test_planted_texts_are_cut_and_written_down_and_the_rest_stays(tmp_path: Path) -> None:
    run = Run(tmp_path, [("boolq", QUESTION), ("wic", SHORT), ("piqa", SHORT.upper())])
    clean = [f"{FILLER} {number}" for number in range(3)]
    outcome = run(clean[0], f"{FILLER} {QUESTION}? {FILLER} {SHORT}. {FILLER}", clean[1], f"{SHORT}!", clean[2])
    kept = dict(zip(outcome.documents["id"].to_pylist(), texts(outcome), strict=True))
    assert list(kept) == ["set/0", "set/1#1", "set/1#2", "set/1#3", "set/2", "set/4"]
    assert [kept[f"set/{number}"] for number in (0, 2, 4)] == clean
    assert not any(canonical(part) in canonical(text) for text in kept.values() for part in (QUESTION, SHORT))
    cuts = outcome.side["cuts"].to_pylist()
    assert [(cut["id"], cut["task"], cut["matched"]) for cut in cuts] == [
        ("set/1", "boolq", QUESTION),
        ("set/1", "piqa,wic", SHORT),
        ("set/3", "piqa,wic", SHORT),
    ]
    for cut in cuts:
        assert cut["matched"] in cut["removed"]
        assert canonical(cut["matched"]).startswith(cut["ngram"])
    whole = f"{FILLER} {QUESTION}? {FILLER} {SHORT}. {FILLER}"
    assert whole[cuts[0]["start"] : cuts[0]["end"]] == cuts[0]["removed"]
    assert 400 < len(cuts[0]["removed"]) - len(QUESTION) < 600
    dropped = outcome.dropped.to_pylist()
    assert [(row["id"], row["rule"]) for row in dropped] == [("set/3", "nothing long is left")]
    assert outcome.counts == {
        "kept": 6,
        "cuts": 3,
        "cuts: boolq": 1,
        "cuts: piqa": 2,
        "cuts: wic": 2,
        "documents cut": 2,
        "pieces: 2 or more": 1,
        "pieces: 0": 1,
        "rule: nothing long is left": 1,
        "short pieces": 0,
    }


def test_common_ngrams_are_left_and_listed(tmp_path: Path) -> None:
    run = Run(tmp_path, [("boolq", QUESTION), ("wic", SHORT)], common_documents=3)
    # Often in one document is not often: documents count.
    planted = [f"{FILLER} {SHORT}. {number}" for number in range(3)] + [f"{QUESTION}. {QUESTION}. {QUESTION}. {FILLER}"]
    outcome = run(*planted)
    assert [cut["task"] for cut in outcome.side["cuts"].to_pylist()] == ["boolq"]
    assert texts(outcome)[:3] == planted[:3]
    common = read_parquet(run.scratch / "common.parquet").to_pylist()
    assert common == [{"ngram": canonical(SHORT), "task": "wic", "documents": 3}]


def test_a_document_that_is_cut_too_often_is_dropped(tmp_path: Path) -> None:
    asked = [("wic", numbered(100 * n, 8)) for n in range(4)]
    middle = f" {FILLER} "
    run = Run(tmp_path, asked, max_cuts=3)
    often, less = (middle.join(text + "." for _, text in asked[:count]) for count in (4, 3))
    outcome = run(often, less)
    assert [(row["id"], row["rule"]) for row in outcome.dropped.to_pylist()] == [("set/0", "cut too often")]
    assert outcome.documents["id"].to_pylist() == ["set/1#1", "set/1#2"]
    assert len(outcome.side["cuts"]) == 7


def test_a_long_passage_is_one_cut(tmp_path: Path) -> None:
    passage = ". ".join(numbered(20 * n, 20) for n in range(40)) + "."
    run = Run(tmp_path, [("race_h", passage)])
    outcome = run(f"{FILLER} {passage} {FILLER}")
    (cut,) = outcome.side["cuts"].to_pylist()
    assert cut["matched"] == passage[:-1]
    assert cut["matches"] == 20 * 40 - 12


def test_short_pieces_go(tmp_path: Path) -> None:
    run = Run(tmp_path, [("wic", SHORT)], margin=0)
    outcome = run(f"A short piece. {SHORT}. {FILLER}")
    assert texts(outcome) == [FILLER]
    assert (outcome.counts["short pieces"], outcome.counts["pieces: 1"]) == (1, 1)


def test_what_is_found_does_not_depend_on_the_shards_or_the_run(tmp_path: Path) -> None:
    generator = random.Random(3)
    asked = [("boolq", prose(generator, generator.randint(4, 12))) for _ in range(30)]
    given = [prose(generator, generator.randint(20, 200)) for _ in range(60)]
    settings = {"min_words": 2, "max_words": 3, "margin": 5, "min_piece": 20, "common_documents": 8}
    first = Run(tmp_path / "a", asked, **settings)(*given, shards=1)
    assert len(first.side["cuts"]) > 10
    index = NgramIndex.of(asked, 2, 3)
    common = {row["ngram"] for row in read_parquet(tmp_path / "a" / "stage" / "scratch" / "common.parquet").to_pylist()}
    left = {index.ngram(match.ngram) for _, match in index.search(texts(first))}
    assert left <= common
    assert 0 < len(common) < len(index)
    second = Run(tmp_path / "b", asked, **settings)(*given, shards=7)
    assert second == first
    # Killed while counting: what is found stays, and what is not is found.
    again = Run(tmp_path / "b", asked, **settings)
    (again.scratch / "common.npy").unlink()
    missing = sorted((again.scratch / "matches").rglob("*.npy"))[2]
    missing.unlink()
    assert again(*given, shards=7) == first


def test_without_texts_documents_pass(tmp_path: Path) -> None:
    stage = Decontaminate(corpus_config())
    (tmp_path / "scratch").mkdir()
    table = documents("one", "two")
    stage.prepare(work_on([Shard("set", "00000", tmp_path / "none")], tmp_path), tmp_path / "scratch")
    outcome = stage.open(tmp_path / "scratch")(Shard("set", "00000", tmp_path), table)
    assert (outcome.documents, dict(outcome.counts)) == (table, {"kept": 2})
    assert stage.identity()["texts"] is None


def test_identity_follows_the_texts_and_not_their_place(tmp_path: Path) -> None:
    first, second = Run(tmp_path / "a", [("wic", SHORT)]), Run(tmp_path / "b", [("wic", SHORT)])
    assert first.stage.identity() == second.stage.identity()
    assert Run(tmp_path / "c", [("wic", SHORT), ("wic", QUESTION)]).stage.identity() != first.stage.identity()
    first.path.unlink()
    with pytest.raises(UserError, match=r"no file at .*; make it with: mtnlg evaluate texts"):
        first.stage.identity()


@pytest.mark.parametrize("line", ["{", '{"task": "a"}', "[1]", '"text"'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"task": "a", "text": "b"}\n\n' + line, encoding="utf-8")
    with pytest.raises(UserError, match=r'line 3: expected an object with "task" and "text"'):
        read_texts(path)


def test_sizes_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="min_words 9 is more than max_words 8"):
        DecontaminateConfig(min_words=9, max_words=8)
