"""The compiled inner loops against plain Python."""

import itertools
import random
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

from training.corpus.dedup.config import DeduplicateConfig
from training.corpus.dedup.kernels import connected_components, join, ngram_sets, sign, similarities
from training.corpus.dedup.signatures import Integers, band_places, permutations
from training.corpus.dedup.verification import NgramSets
from training.corpus.dedup.words import letters, text_buffers

TEXTS = [
    "",
    "   \n",
    "— …!",
    "one",
    "One two three four",
    "one two three four five",
    "One, two; three (four) five — six? SEVEN!",
    "a b a b a b a b a b a b",
    "Größe ÄÖÜ naïve café Ελληνικά Русский текст",
    "cafe\u0301 with a combining mark, snake_case and 3.14",
    "“quoted” it\u2019s one\u00a0two\u2003three\u3000four 日本語 emoji 😀 end of it",
    "\U0001d49c\U0001d4b7 letters beyond the first plane 𐍈 too",
]


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w\u0300-\u036f]+", text.lower())


def ngrams_of(text: str, ngram: int = 5) -> set[tuple[str, ...]]:
    words = words_of(text)
    size = min(ngram, len(words))
    return {tuple(words[place : place + size]) for place in range(len(words) - size + 1)} if words else set()


def sets_of(texts: list[str], ngram: int = 5) -> NgramSets:
    values, sizes = ngram_sets(*column(texts), letters(), ngram, np.arange(len(texts)))
    ends = np.cumsum(sizes)
    return NgramSets(values, np.stack([ends - sizes, ends], axis=1))


def column(texts: list[str]) -> tuple[np.ndarray, Integers]:
    return text_buffers(pa.chunked_array([pa.array(texts, pa.large_string())]))


def edited(words: list[str], share: float, chance: random.Random) -> list[str]:
    return [f"other{chance.randrange(10**6)}" if chance.random() < share else word for word in words]


def some_texts(count: int, seed: int, words: int = 120) -> list[str]:
    """Texts that are each an edited copy of one of a few."""
    chance = random.Random(seed)
    templates = [[f"w{chance.randrange(500)}" for _ in range(words)] for _ in range(4)]
    return [" ".join(edited(chance.choice(templates), chance.random() * 0.06, chance)) for _ in range(count)]


def test_letters_are_words_in_lower_case() -> None:
    table = letters()
    for code in (*range(0x500), *range(0x2000, 0x2100), 0x3042, 0x1F600):
        character = chr(code)
        is_word = bool(re.match(r"\w", character)) or unicodedata.category(character)[0] == "M"
        assert table[code] == (ord(character.lower()[0]) if is_word else 0), hex(code)


@pytest.mark.parametrize("ngram", [1, 3, 5])
def test_sets_have_the_sizes_and_similarities_of_plain_sets(ngram: int) -> None:
    texts = [*TEXTS, *some_texts(20, seed=1)]
    sets = sets_of(texts, ngram)
    plain = [ngrams_of(text, ngram) for text in texts]
    assert (sets.bounds[:, 1] - sets.bounds[:, 0]).tolist() == [len(found) for found in plain]
    pairs = np.array(list(itertools.product(range(len(texts)), repeat=2)))
    found = similarities(sets.values, sets.bounds, pairs[:, 0].copy(), pairs[:, 1].copy())
    expected = [len(plain[a] & plain[b]) / max(1, len(plain[a] | plain[b])) for a, b in pairs]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_slices_of_a_column_are_read_where_they_lie() -> None:
    whole = pa.array(TEXTS, pa.large_string())
    _, sizes = ngram_sets(*text_buffers(pa.chunked_array([whole.slice(5, 4)])), letters(), 5, np.arange(4))
    assert sizes.tolist() == [len(ngrams_of(text)) for text in TEXTS[5:9]]


def test_signatures_estimate_the_similarity() -> None:
    texts = some_texts(60, seed=2, words=250)
    multipliers, additions = permutations(1234, 400)
    keys, _, _ = sign(*column(texts), letters(), 5, multipliers, additions, np.arange(400).reshape(400, 1))
    pairs = list(itertools.combinations(range(60), 2))
    plain = [ngrams_of(text) for text in texts]
    exact = np.array([len(plain[a] & plain[b]) / len(plain[a] | plain[b]) for a, b in pairs])
    errors = np.array([(keys[:, a] == keys[:, b]).mean() for a, b in pairs]) - exact
    assert exact.max() > 0.8 and exact.min() < 0.05
    # The standard deviation of an estimate is at most 0.5 / sqrt(400).
    assert abs(errors.mean()) < 0.01
    assert np.abs(errors).max() < 0.125


def test_texts_of_the_same_words_have_the_same_signature_and_others_do_not() -> None:
    texts = ["One two, three four five six!", "one  two three — four FIVE six", "one two three four five seven"]
    keys, whole, counts = sign(
        *column([*texts, ""]), letters(), 5, *permutations(1, 260), band_places(DeduplicateConfig())
    )
    assert (keys[:, 0] == keys[:, 1]).all() and (whole[:, 0] == whole[:, 1]).all()
    assert (whole[:, 0] != whole[:, 2]).all()
    assert counts.tolist() == [2, 2, 2, 0]
    assert len(set(keys[:, 0].tolist())) == 40


def test_each_arrangement_uses_every_hash_once_and_bands_share_few() -> None:
    for bands, rows in ((20, 13), (14, 8), (5, 1), (1, 4)):
        arrangements = min(3, bands)
        places = band_places(DeduplicateConfig(bands=bands, rows=rows, arrangements=arrangements))
        assert places.shape == (arrangements * bands, rows)
        for turn in range(arrangements):
            assert sorted(places[turn * bands : (turn + 1) * bands].ravel().tolist()) == list(range(bands * rows))
    sets = [set(band) for band in band_places(DeduplicateConfig(arrangements=3)).tolist()]
    assert max(len(a & b) for a, b in itertools.combinations(sets, 2)) <= 2


@pytest.mark.parametrize("seed", range(6))
def test_a_bucket_is_joined_as_all_pairs_would_join_it(seed: int) -> None:
    texts = some_texts(80, seed=seed)
    sets = sets_of(texts)
    plain = [ngrams_of(text) for text in texts]
    alike = {
        (a, b)
        for a, b in itertools.combinations(range(80), 2)
        if len(plain[a] & plain[b]) >= 0.8 * len(plain[a] | plain[b])
    }
    edges, (comparisons, unfinished) = join(sets.values, sets.bounds, np.arange(80), np.array([0, 80]), 0.8, 256)
    assert set(map(tuple, np.sort(edges.T).tolist())) <= alike
    assert components(80, edges.T.tolist()) == components(80, list(alike))
    assert len(components(80, list(alike))) < 80
    assert unfinished == 0 and comparisons <= 80 * 79


def test_components_are_those_of_scipy() -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components as reference

    generator = np.random.default_rng(3)
    left, right = generator.integers(0, 1000, (2, 600))
    found = connected_components(left, right, 1000)
    count, labels = reference(coo_matrix((np.ones(600), (left, right)), shape=(1000, 1000)), directed=False)
    assert len(set(zip(found.tolist(), labels.tolist(), strict=True))) == count == len(set(found.tolist())) < 600
    assert (found <= np.arange(1000)).all()


def test_what_is_joined_is_not_compared_again() -> None:
    texts = ["one two three four five six seven eight nine ten"] * 500
    sets = sets_of(texts)
    members, starts = np.tile(np.arange(500), 20), np.arange(0, 10001, 500)
    edges, (comparisons, unfinished) = join(sets.values, sets.bounds, members, starts, 0.8, 256)
    assert (edges.shape[1], comparisons, unfinished) == (499, 499, 0)


def test_the_limit_bounds_the_work_and_is_told() -> None:
    chance = random.Random(5)
    texts = [" ".join(f"w{chance.randrange(10**9)}" for _ in range(30)) for _ in range(1000)]
    sets = sets_of(texts)
    _, (comparisons, unfinished) = join(sets.values, sets.bounds, np.arange(1000), np.array([0, 1000]), 0.8, 10)
    assert 10_000 <= comparisons < 12_000 and unfinished == 1
    _, (comparisons, unfinished) = join(sets.values, sets.bounds, np.arange(1000), np.array([0, 1000]), 0.8, 1000)
    assert comparisons == 1000 * 999 / 2 and unfinished == 0


def components(size: int, edges: list[tuple[int, int]] | list[list[int]]) -> set[frozenset[int]]:
    groups = [{number} for number in range(size)]
    for a, b in edges:
        if groups[a] is not groups[b]:
            groups[a] |= groups[b]
            for number in groups[b]:
                groups[number] = groups[a]
    return {frozenset(group) for group in groups}
