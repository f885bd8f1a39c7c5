"""The article extraction benchmark's metric, by cases worked out by hand."""

import pytest

from benchmarks.corpus_extraction import Matches, matches, score_pages


def test_four_word_shingles_with_multiplicity() -> None:
    # "a b c d" and "b c d e"; "a b c d" twice, "b c d a", "c d a b" and "d a b c": 1 shared, 4 too many, 1 missing.
    assert matches("a b c d e", "a, b c; d a b c d") == Matches(1 / 6, 4 / 6, 1 / 6)


def test_a_text_of_fewer_words_than_a_shingle_is_one_shingle() -> None:
    assert matches("Two words", "Two words") == Matches(1, 0, 0)
    assert matches("Two words", "two words") == Matches(0, 0.5, 0.5)
    assert matches("", "") == Matches(0, 0, 0)


def test_scores_are_means_over_pages() -> None:
    score = score_pages([("a b c d e", "a b c d"), ("a b c d", "a b c d e"), ("x y z w", "x y z w")])
    assert score.precision == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert score.recall == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert score.f1 == pytest.approx(2 * score.precision * score.recall / (score.precision + score.recall))


def test_pages_that_say_nothing_are_left_out() -> None:
    # Nothing extracted has no precision; nothing to extract has no recall.
    score = score_pages([("a b c d", ""), ("", "a b c d"), ("a b c d", "a b c d")])
    assert (score.precision, score.recall) == (0.5, 0.5)
