"""`mtnlg runs compare`: the table, the differing keys, the picture, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from training.report.compare import differing_keys, final_values

MTNLG = str(Path(sys.executable).parent / "mtnlg")


def make_run(folder: Path, losses: list[float], **configuration: Any) -> Path:
    folder.mkdir(parents=True)
    lines: list[dict[str, float]] = [{"step": 0, "tokens": 0, "validation_loss": 10.0}]
    for step, loss in enumerate(losses, 1):
        speed = 100.0 * step
        lines.append({"step": step, "tokens": 1000 * step, "loss": loss, "tokens_per_second": speed})
    last = len(losses)
    lines.append({"step": last, "tokens": 1000 * last, "validation_loss": losses[-1] + 0.5})
    lines.append({"step": last, "tokens": 1000 * last, "checkpoint_stall_seconds": 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(yaml.safe_dump({"out": str(folder), **configuration}))
    return folder


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MTNLG, "runs", "compare", *map(str, arguments)],
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_final_values_are_the_last_ones_and_the_median_speed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [5.0, 4.0, 3.0])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert final_values(lines) == {
        "step": 3,
        "tokens": 3000,
        "loss": 3.0,
        "validation_loss": 3.5,
        "tokens_per_second": 200.0,
    }
    assert final_values(lines[:1]) == {"step": 0, "tokens": 0, "validation_loss": 10.0}


def test_differing_keys_are_named_with_their_section() -> None:
    first = {"layout": {"tensor_parallel_size": 1}, "training": {"seed": 3, "batch_ramp": None}, "out": "a"}
    second = {"layout": {"tensor_parallel_size": 2}, "training": {"seed": 3, "batch_ramp": {"start": 8}}, "out": "a"}
    assert differing_keys([first, second, first]) == {
        "layout.tensor_parallel_size": ["1", "2", "1"],
        "training.batch_ramp": ["None", "-", "None"],
        "training.batch_ramp.start": ["-", "8", "-"],
    }


def test_three_runs_are_compared(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, losses, optimizer={"learning_rate": rate}, training={"seed": 1})
        for name, losses, rate in (("a", [5.0, 4.0], 0.1), ("b", [5.0, 3.0], 0.2), ("c", [5.0, 2.0, 1.5], 0.3))
    ]
    result = compare(*runs, "--out", tmp_path / "compare.png")
    assert result.returncode == 0, result.stderr
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["a"] == ["2", "2,000", "4.0000", "4.5000", "90.02", "150"]
    assert rows["c"] == ["3", "3,000", "1.5000", "2.0000", "7.39", "200"]
    assert rows["optimizer.learning_rate"] == ["0.1", "0.2", "0.3"]
    assert "training.seed" not in rows
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_holds_every_curve(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, [5.0, 4.0]) for name in ("first", "second")]
    result = compare(*runs, "--out", tmp_path / "compare.svg")
    assert result.returncode == 0, result.stderr
    picture = (tmp_path / "compare.svg").read_text()
    for run in ("first", "second"):
        for curve in ("loss", "validation loss"):
            # matplotlib writes each label as a comment beside its glyphs.
            assert f"<!-- {run} {curve} -->" in picture


def test_the_same_configurations_and_names_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / parent / "run", [5.0, 4.0]) for parent in ("a", "b")]
    for run in runs:
        (run / "config.yaml").write_text("out: runs/run\n")
    result = compare(*runs, "--out", tmp_path / "compare.png")
    assert result.returncode == 0, result.stderr
    assert "The configurations are the same." in result.stdout
    for run in runs:
        assert str(run) in result.stdout


@pytest.mark.parametrize(
    ("names", "out", "message"),
    [
        (["run"], "x.png", "give two or more run folders to compare"),
        (["run", "gone"], "x.png", "gone is not a run folder with results"),
        (["run", "run"], "x.png", "the same run folder is named twice"),
        (["run", "other"], "x.txt", "expected a name that ends in one of .png, .svg, .pdf"),
        (["run", "other"], "nowhere/x.png", "there is no folder"),
    ],
)
def test_a_mistake_is_one_line(names: list[str], out: str, message: str, tmp_path: Path) -> None:
    for name in ("run", "other"):
        make_run(tmp_path / name, [5.0, 4.0])
    result = compare(*[tmp_path / name for name in names], "--out", tmp_path / out)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_help_shows_an_example() -> None:
    result = compare("--help")
    assert result.returncode == 0
    assert "Example: mtnlg runs compare" in result.stdout
