"""`mtnlg cache`: what is kept is listed, and goes when it is asked to."""

import fcntl
import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foundation.cache import cache_lock, list_cache, remove_from_cache
from foundation.errors import UserError
from mtnlg import app


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path))
    for name, size, days in (("converted/old", 3_000_000, 40), ("converted/new", 10, 1), ("packages/a==1", 20, 50)):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "inside" / "file").write_bytes(bytes(size))
        used = time.time() - 86_400 * days
        os.utime(tmp_path / name, (used, used))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in folder.glob("*/*")}


def test_what_is_kept_is_listed_with_its_size_and_age(cache: Path) -> None:
    assert [(kept.name, kept.size, round(kept.days_unused)) for kept in list_cache()] == [
        ("converted/new", 10, 1),
        ("converted/old", 3_000_000, 40),
        ("packages/a==1", 20, 50),
    ]
    shown = CliRunner().invoke(app, ["cache", "list"]).output
    assert "converted/old" in shown and "3.0 MB" in shown and "40 days" in shown and str(cache) in shown


def test_an_empty_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path / "none"))
    assert "0.0 MB" in CliRunner().invoke(app, ["cache", "list"]).output


def test_a_name_a_kind_or_an_age_says_what_goes(cache: Path) -> None:
    assert [kept.name for kept in remove_from_cache(["converted"], days_unused=30)] == ["converted/old"]
    assert names(cache) == {"converted/new", "packages/a==1"}
    assert [kept.name for kept in remove_from_cache([], days_unused=30)] == ["packages/a==1"]
    assert [kept.name for kept in remove_from_cache(["converted/new"])] == ["converted/new"]
    assert names(cache) == set()


def test_a_dry_run_removes_nothing(cache: Path) -> None:
    answer = CliRunner().invoke(app, ["cache", "remove", "converted", "--dry-run"])
    assert answer.stdout.split() == ["converted/new", "converted/old"]
    assert "would free 3.0 MB" in answer.stderr
    assert len(names(cache)) == 3


@pytest.mark.parametrize("wrong", ["convertd", "converted/none", "../tmp"])
def test_a_name_that_is_not_there_removes_nothing(cache: Path, wrong: str) -> None:
    with pytest.raises(UserError, match="mtnlg cache list"):
        remove_from_cache(["packages", wrong])
    assert len(names(cache)) == 3


def test_everything_goes_only_where_it_is_said(cache: Path) -> None:
    answer = CliRunner().invoke(app, ["cache", "remove"])
    assert isinstance(answer.exception, UserError)
    assert len(names(cache)) == 3


def test_what_is_being_written_stays(cache: Path) -> None:
    with cache_lock(cache / "converted/old").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="converted/old is being written"):
            remove_from_cache(["converted"])
        assert (cache / "converted/new").is_dir()
    assert len(remove_from_cache(["converted"])) == 2


def test_what_a_killed_removal_left_goes_with_the_next(cache: Path) -> None:
    (cache / "converted/old").rename(cache / "converted/.removed-old")
    assert [kept.name for kept in list_cache()] == ["converted/new", "packages/a==1"]
    remove_from_cache(["packages"])
    assert names(cache) == {"converted/new"}
