"""`mtnlg corpus build` as a user meets it: the dry run, and what it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from foundation.errors import UserError
from tests.training.corpus.source_files import write_lines
from training.corpus.command import build_command
from training.corpus.run import build_corpus


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """One dataset of two files."""
    for name in ("a", "b"):
        write_lines(tmp_path / "web" / f"{name}.jsonl.gz", [{"text": "some text"}])
    path = tmp_path / "corpus.yaml"
    datasets = [{"name": "web", "paths": [str(tmp_path / "web")]}]
    path.write_text(yaml.safe_dump({"out": str(tmp_path / "out"), "datasets": datasets}))
    return path


def test_a_dry_run_says_what_there_is_and_what_would_be_done(
    configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_corpus(configuration, ["shard_megabytes=3"], dry_run=True)
    said = capsys.readouterr()
    assert "dataset web: 2 files (jsonl), 0.0 MB" in said.err
    assert "sources: to do" in said.err
    assert "blend: to do, after sources" in said.err
    assert yaml.safe_load(said.out)["shard_megabytes"] == 3
    assert not (configuration.parent / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "stage", "said"),
    [
        ((), "dedup", "no stage is called dedup; there are: sources, extract"),
        (("claen.min_characters=1",), None, "claen: unknown key; did you mean clean"),
        (("datasets=[]",), None, "datasets: Tuple should have at least 1 item"),
    ],
)
def test_mistakes_are_one_line(configuration: Path, overrides: list[str], stage: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        build_corpus(configuration, list(overrides), stage=stage)
    assert "\n" not in str(caught.value)


def test_the_command_line_ends_with_one_line_and_status_2(configuration: Path) -> None:
    text = configuration.read_text().replace(str(configuration.parent / "web"), str(configuration.parent / "wbe"))
    configuration.write_text(text)
    command = [sys.executable, "-m", "mtnlg", "corpus", "build", str(configuration), "--dry-run"]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[3], check=False
    )
    assert result.returncode == 2
    assert result.stderr.startswith("mtnlg: dataset web: no file or folder at ")
    assert "did you mean" in result.stderr


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.corpus.libraries._NEEDED", ("pyarrow", "no_such_library"))
    with pytest.raises(UserError, match=r"a corpus needs no_such_library: pip install 'mtnlg\[corpus\]'"):
        build_command(Path("corpus.yaml"))
