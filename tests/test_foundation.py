"""Configuration, safe writes, manifests, data from packages."""

from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from foundation import packages
from foundation.config import StrictModel, load_config, write_config
from foundation.errors import UserError
from foundation.files import building_folder, read_json, write_json, write_text
from foundation.manifest import FileRecord, check_manifest, read_manifest, write_manifest
from training.config import TrainConfig


class Inner(StrictModel):
    width: int = 1
    depth: int = 2


class Outer(StrictModel):
    inner: Inner = Inner()
    name: str


def write_yaml(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_overrides_reach_into_sections(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "name: a\ninner: {width: 5}\n")
    config = load_config(Outer, path, ["inner.depth=7", "name=b"])
    assert config == Outer(name="b", inner=Inner(width=5, depth=7))


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(TrainConfig, Path("configs/train/demo.yaml"), ["training.micro_batch_size=2"])
    write_config(config, tmp_path / "again.yaml")
    assert load_config(TrainConfig, tmp_path / "again.yaml") == config


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("name: a\ninner: {widht: 5}", [], "inner.widht: unknown key; did you mean width?"),
        ("inner: {width: 5}", [], "name: this key is required"),
        ("name: a", ["inner.width=wide"], "inner.width: Input should be a valid integer"),
        ("name: a", ["name.x=1"], "override 'name.x=1': name in"),
        ("- a\n- b", [], "must hold a mapping"),
        ("name: [", [], "is not valid YAML"),
    ],
)
def test_configuration_mistakes_are_named(tmp_path: Path, text: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(Outer, write_yaml(tmp_path, text), overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_training_configuration_in_the_repository_is_valid() -> None:
    paths = sorted(Path("configs/train").glob("*.yaml"))
    assert paths
    for path in paths:
        load_config(TrainConfig, path).check()


def test_an_interrupted_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"old": 1})
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_text(path, "new")
    assert read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


def test_an_interrupted_folder_never_takes_its_name(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), building_folder(target) as folder:
        (folder / "part").write_text("x")
        raise RuntimeError("killed")
    assert not target.exists()
    with building_folder(target) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").write_text("x")
    assert [p.name for p in target.iterdir()] == ["whole"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_manifest_notices_missing_short_and_changed_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_text("content")
    manifest = write_manifest(tmp_path, "test", {"step": 3}, [tmp_path / name for name in "abcd"])
    assert read_manifest(tmp_path) == manifest
    assert manifest.files["a"] == FileRecord.of(tmp_path / "a")
    assert check_manifest(tmp_path, manifest) == []
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("cont")
    (tmp_path / "c").write_text("CONTENT")
    problems = check_manifest(tmp_path, manifest)
    assert len(problems) == 3
    assert problems[0].endswith("a is missing")
    assert problems[1].endswith("b has 4 bytes instead of 7")
    assert problems[2].endswith("c was changed: its sha256 differs from the manifest's")
    assert read_manifest(tmp_path / "nowhere") is None


def test_a_damaged_manifest_is_an_error_and_not_an_absence(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(yaml.safe_dump({"a": 1}))
    with pytest.raises(UserError, match="is not valid JSON"):
        read_manifest(tmp_path)
    write_json(tmp_path / "manifest.json", {"format": "x"})
    with pytest.raises(UserError, match="is not a manifest"):
        read_manifest(tmp_path)


def test_package_files_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        fetched.append(requirement)
        with ZipFile(folder / "x-1.whl", "w") as archive:
            archive.writestr("x/data.txt", "real")
            archive.writestr("x/more.txt", "data")
        return folder / "x-1.whl"

    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "_download", download)
    assert packages.package_files("x==1", ["x/data.txt"])["x/data.txt"].read_text() == "real"
    assert packages.package_files("x==1", ["x/data.txt", "x/more.txt"])["x/more.txt"].read_text() == "data"
    assert fetched == ["x==1"]
    with pytest.raises(UserError, match="package x==1 holds no file x/other"):
        packages.package_files("x==1", ["x/other"])


def test_an_unreachable_package_index_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError, match=r"could not fetch the package no-such-package==1.*package index") as caught:
        packages.package_files("no-such-package==1", ["x"])
    assert "\n" not in str(caught.value)
