"""A build: what is done once, what again, and what after a kill; by stages that are made for it."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from foundation.errors import UserError
from foundation.files import read_json
from foundation.manifest import read_manifest
from tests.training.corpus.made_stages import STAGES, Counting
from tests.training.corpus.source_files import write_lines
from training.corpus.config import CorpusConfig
from training.corpus.lock import building, working
from training.corpus.parquet import read_parquet
from training.corpus.pipeline import build, states
from training.corpus.progress import BuildDisplay
from training.corpus.shard_work import shard_records


@pytest.fixture(autouse=True)
def _made_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.stages.STAGES", STAGES)
    monkeypatch.setattr("training.corpus.pipeline.STAGES", STAGES)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two datasets, of three files and of one; each file becomes a shard."""
    folder = tmp_path / "sources"
    for number in range(3):
        rows = [{"text": f"web {number} {row}{' drop' * (row == 3)} {'x' * 240_000}"} for row in range(4)]
        write_lines(folder / "web" / f"{number}.jsonl", rows)
    write_lines(folder / "books" / "all.jsonl", [{"text": "one book"}, {"text": "another"}])
    return folder


def configured(sources: Path, out: Path, datasets: tuple[str, ...] = ("books", "web"), **more: Any) -> CorpusConfig:
    skip = more.pop("skip", {})
    listed = [{"name": name, "paths": [str(sources / name)], "skip": skip.get(name, [])} for name in datasets]
    return CorpusConfig.model_validate({"out": str(out), "shard_megabytes": 1, "datasets": listed, **more})


def run(config: CorpusConfig, engine: Counting | None = None, only: str | None = None) -> list[str]:
    """Build, and return what was given to the engine."""
    engine = engine or Counting()
    build(config, engine, BuildDisplay(Console(quiet=True)), only=only)
    return engine.items


def digests(out: Path) -> dict[str, str]:
    """Every file of a build that must be the same in every run."""
    differ = {"times.json", "begun.json", "corpus.yaml", "scratch"}
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not differ.intersection(path.relative_to(out).parts)
    }


def test_documents_go_through_all_stages_in_the_datasets_order(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    texts = (tmp_path / "out" / "tokenise" / "texts.txt").read_text().split("\n")
    assert [text.partition(" X")[0] for text in texts] == [
        "ONE BOOK 11",
        "ANOTHER 11",
        *(f"WEB {number} {row}" for number in range(3) for row in range(3)),
    ]
    summary = read_json(tmp_path / "out" / "clean" / "summary.json")["datasets"]
    assert summary["web"]["counts"] == {"kept": 9, "rule: drop": 3}
    assert (summary["web"]["documents_in"], summary["web"]["documents_out"]) == (12, 9)
    manifest = read_manifest(tmp_path / "out" / "clean")
    assert manifest is not None
    assert "side/lengths/web/00000-0000.parquet" in manifest.files
    assert manifest.about["counts"]["dropped"] == 3


def test_ids_name_the_dataset_the_file_and_the_line(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    ids = [
        identity
        for shard, _ in shard_records(tmp_path / "out" / "clean")
        for identity in read_parquet(shard.path)["id"].to_pylist()
    ]
    assert ids[:3] == ["books/all.jsonl/1", "books/all.jsonl/2", "web/0.jsonl/1"]
    assert len(set(ids)) == len(ids) == 11


def test_what_is_done_is_not_done_again(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out")
    assert run(config)
    before = digests(tmp_path / "out")
    assert run(config) == []
    assert digests(tmp_path / "out") == before


def test_the_result_depends_on_neither_place_nor_order(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "a"))
    moved = tmp_path / "moved"
    shutil.copytree(sources, moved)
    (tmp_path / "deep").mkdir()
    run(configured(moved, tmp_path / "deep" / "b"))
    assert digests(tmp_path / "a") == digests(tmp_path / "deep" / "b")


def test_a_killed_build_goes_on_where_it_ended(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "whole"))
    config = configured(sources, tmp_path / "out")
    done: list[str] = []
    for _ in range(30):
        engine = Counting(die_after=2)
        try:
            done += run(config, engine)
            break
        except KeyboardInterrupt:
            done += engine.items
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    shards = [item for item in done if item.startswith("{")]
    # Each shard of two stages once.
    assert len(shards) == len(set(shards)) == 2 * 4


def test_a_changed_setting_does_its_stage_and_those_behind_it_again(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    changed = configured(sources, tmp_path / "out", clean={"min_characters": 7})
    assert [state for _, state in states(changed, list(STAGES))] == [
        "done already",
        "to do again: least changed",
        "to do, after clean",
        "to do, after clean",
    ]
    # Its result is the same, so the stages behind it see the same shards.
    assert len(run(changed)) == 4


def test_a_dataset_that_is_added_leaves_the_others_shards_as_they_are(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out", ("web",)))
    items = run(configured(sources, tmp_path / "out"))
    assert [item for item in items if not item.startswith(("{", "/"))] == ["books/00000"]
    cleaned = [json.loads(item) for item in items if '"clean"' in item or "/sources/" in item]
    assert {item["dataset"] for item in cleaned if isinstance(item, dict)} == {"books"}
    run(configured(sources, tmp_path / "fresh"))
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_files_that_go_take_their_shards_along(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    (sources / "web" / "2.jsonl").unlink()
    run(configured(sources, tmp_path / "out"))
    run(configured(sources, tmp_path / "fresh"))
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_file_that_is_written_anew_with_the_same_bytes_changes_nothing(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    before = digests(tmp_path / "out")
    path = sources / "web" / "1.jsonl"
    path.write_bytes(path.read_bytes())
    assert run(configured(sources, tmp_path / "out")) == ["web/00001"]
    assert digests(tmp_path / "out") == before


def test_a_lost_file_is_made_again(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out")
    run(config)
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "clean" / "web" / "00002-0000.parquet").unlink()
    (item,) = run(config)
    assert json.loads(item)["name"] == "00002-0000"
    assert digests(tmp_path / "out") == before


def test_a_lost_file_of_a_stage_without_shards_is_made_again(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out")
    run(config)
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "tokenise" / "texts.txt").write_text("cut sh")
    assert run(config) == []
    assert digests(tmp_path / "out") == before


def test_a_dataset_that_is_taken_out_is_gone_from_a_single_stage_too(sources: Path, tmp_path: Path) -> None:
    run(configured(sources, tmp_path / "out"))
    fewer = configured(sources, tmp_path / "out", ("books",))
    run(fewer, only="clean")
    assert list(read_json(tmp_path / "out" / "clean" / "summary.json")["datasets"]) == ["books"]
    assert not list((tmp_path / "out" / "clean" / "web").glob("*.parquet"))
    run(fewer)
    run(configured(sources, tmp_path / "fresh", ("books",)))
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_dataset_may_skip_a_stage(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out", skip={"web": ["deduplicate"]})
    run(config)
    texts = (tmp_path / "out" / "tokenise" / "texts.txt").read_text().split("\n")
    assert texts[0] == "ONE BOOK 2"
    assert texts[2].startswith("WEB 0 0 X") and texts[2].endswith("X")
    assert run(config) == []
    summary = read_json(tmp_path / "out" / "deduplicate" / "summary.json")["datasets"]
    assert summary["web"]["counts"] == {"passed on": 9}
    # And not to skip it after all:
    run(configured(sources, tmp_path / "out"))
    run(configured(sources, tmp_path / "fresh"))
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_one_stage_alone(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out")
    with pytest.raises(UserError, match="sources is not finished; run the stages before first"):
        run(config, only="clean")
    run(config, only="sources")
    run(config, only="clean")
    assert read_manifest(tmp_path / "out" / "clean") is not None
    assert not (tmp_path / "out" / "deduplicate").exists()


def test_a_dry_run_writes_nothing(sources: Path, tmp_path: Path) -> None:
    config = configured(sources, tmp_path / "out")
    assert [state for _, state in states(config, list(STAGES))] == ["to do", *["to do, after sources"] * 3]
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(sources: Path, tmp_path: Path) -> None:
    precious = tmp_path / "out" / "clean" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("chapter 1")
    with pytest.raises(UserError, match="not empty and no build"):
        run(configured(sources, tmp_path / "out"))
    assert precious.read_text() == "chapter 1"


def test_a_refusal_says_what_the_stage_says(sources: Path, tmp_path: Path) -> None:
    write_lines(sources / "books" / "bad.jsonl", [{"text": "refuse this"}])
    with pytest.raises(UserError, match=r"books/bad.jsonl/1: refused"):
        run(configured(sources, tmp_path / "out"))


@pytest.mark.parametrize(("row", "said"), [({"body": "x"}, "1 rule: bad record; the first: a.jsonl: 1: neither")])
def test_a_dataset_without_documents_is_refused(tmp_path: Path, row: dict[str, str], said: str) -> None:
    write_lines(tmp_path / "sources" / "web" / "a.jsonl", [row])
    with pytest.raises(UserError, match=said):
        run(configured(tmp_path / "sources", tmp_path / "out", ("web",)))


def test_a_second_build_waits_for_the_workers_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.lock._WAIT_SECONDS", 0.3)
    busy = pytest.raises(UserError, match="another build is at work")
    with building(tmp_path), working(tmp_path / ".lock"), busy, building(tmp_path):
        pass
    with working(tmp_path / ".lock"), pytest.raises(UserError, match="another build"), building(tmp_path):
        pass
    with building(tmp_path):
        pass


def test_names_of_datasets_are_checked() -> None:
    def config(*names: str) -> None:
        datasets = [{"name": name, "paths": ["x"]} for name in names]
        CorpusConfig.model_validate({"out": "x", "datasets": datasets})

    config("a", "b")
    for names, said in ((("a", "a"), "two datasets are called a"), (("scratch",), "no dataset may be called scratch")):
        with pytest.raises(ValueError, match=said):
            config(*names)
