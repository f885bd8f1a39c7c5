"""Accuracy, precision and recall by cases worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from training.corpus.quality.held_out import draw, measure


def test_precision_and_recall_at_each_score() -> None:
    found = measure([True, False, True, False], [0.9, 0.8, 0.6, 0.1])
    assert found.thresholds.tolist() == [0.9, 0.8, 0.6, 0.1]
    assert found.precision.tolist() == [1, 1 / 2, 2 / 3, 2 / 4]
    assert found.recall.tolist() == [0.5, 0.5, 1, 1]
    assert found.average_precision == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert found.accuracy == 3 / 4


def test_documents_of_one_score_are_told_apart_by_nothing() -> None:
    for labels in ([True, False, False, True], [False, True, True, False]):
        found = measure(labels, [0.5, 0.5, 0.5, 0.5])
        assert (found.precision.tolist(), found.recall.tolist()) == ([0.5], [1.0])
        assert (found.average_precision, found.accuracy) == (0.5, 0.5)


def test_no_positive() -> None:
    with pytest.raises(ValueError, match="no positive"):
        measure([False], [0.2])


def test_the_picture_depends_on_the_numbers_alone(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(200) < 0.5
    scores = np.clip(labels * 0.3 + generator.random(200) * 0.7, 0, 1)
    for name in ("a.png", "b.png"):
        draw(measure(labels.tolist(), scores.tolist()), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    draw(measure(labels.tolist(), (scores / 3).tolist()), tmp_path / "c.png")  # none reaches 0.5
    assert (tmp_path / "c.png").read_bytes() != (tmp_path / "a.png").read_bytes()
