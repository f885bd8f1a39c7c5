"""Scores on the disk: kept as they come, read again, refused when damaged."""

from pathlib import Path

import pytest

from evaluation.score_store import ScoreStore, StoredScore, request_key
from foundation.errors import UserError

SCORE = StoredScore(-1.25, True, tokens_asked=7, context_cut=False, tokens_computed=5, seconds=0.5)
DETERMINANTS = {"model": "a"}


def keep(path: Path, *keys: str) -> None:
    with ScoreStore(path, DETERMINANTS) as store:
        for key in keys:
            store.add({key: SCORE})


def test_scores_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "scores" / "piqa.jsonl"
    keep(path, "one", "two")
    with ScoreStore(path, DETERMINANTS) as store:
        assert store.get("one") == store.get("two") == SCORE
        assert store.get("three") is None


def test_scores_are_on_the_disk_before_the_store_is_closed(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path / "piqa.jsonl", DETERMINANTS)
    store.add({"one": SCORE})
    with ScoreStore(tmp_path / "piqa.jsonl", DETERMINANTS) as other:
        assert other.get("one") == SCORE
    store.__exit__(None, None, None)


@pytest.mark.parametrize("left", [1, 10, 60])
def test_torn_last_line_is_dropped_and_written_over(tmp_path: Path, left: int) -> None:
    path = tmp_path / "piqa.jsonl"
    keep(path, "one", "two")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], lines[2][:left]]))
    with ScoreStore(path, DETERMINANTS) as store:
        assert store.get("one") == SCORE
        assert store.get("two") is None
        store.add({"three": SCORE})
    with ScoreStore(path, DETERMINANTS) as store:
        assert store.get("three") == SCORE


def test_another_models_scores_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "piqa.jsonl"
    keep(path, "one")
    with ScoreStore(path, {"model": "b"}) as store:
        assert store.get("one") is None
    with ScoreStore(path, DETERMINANTS) as store:
        assert store.get("one") is None


@pytest.mark.parametrize("damage", ["no json", "[]", '{"request": "x"}', '{"request": "x", "logprob": 1, "more": 2}'])
def test_damage_is_named_with_its_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "piqa.jsonl"
    keep(path, "one", "two")
    lines = path.read_text().split("\n")
    path.write_text("\n".join([lines[0], damage, *lines[2:]]))
    with pytest.raises(UserError, match=r"piqa\.jsonl, line 2, is no score: .*remove the file"):
        ScoreStore(path, DETERMINANTS)


def test_key_tells_the_join_apart() -> None:
    assert request_key("a", "b") == request_key("a", "b")
    assert len({request_key("ab", ""), request_key("a", "b"), request_key("", "ab")}) == 3
