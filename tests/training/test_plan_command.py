"""`mtnlg plan` as people run it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import MakeTrainConfig
from training.planner.prediction import Prediction

BIN = Path(sys.executable).parent
RUN = ("mt-nlg-530b", "--cluster", "selene", "--nodes", "280", "--layout", "8,35,8", "--batch", "1920")


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "mtnlg"), "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_plan_says_how_long_and_why() -> None:
    result = plan(*RUN, "--tokens", "270B", "--what-if", "tp=4")
    assert result.returncode == 0, result.stderr
    for text in ("529.6 B parameters", "240 micro-batches of 1", "data-parallel reduction", "GPU-hours", "tp=4"):
        assert text in result.stdout


def test_a_plan_for_programmes() -> None:
    document = json.loads(plan(*RUN, "--tokens", "270B", "--json").stdout)
    assert document["iteration_seconds"] == pytest.approx(60.1, rel=0.05)
    assert sum(document["split_seconds"].values()) == pytest.approx(document["iteration_seconds"])
    steps = 270e9 / 1920 / 2048
    assert document["days"] == pytest.approx(steps * document["iteration_seconds"] / 86400)
    assert document["gpu_hours"] == pytest.approx(document["days"] * 24 * 2240)


def test_a_trace_is_perfetto_s(tmp_path: Path) -> None:
    result = plan("22b", "--layout", "2,4,1", "--batch", "8", "--trace", str(tmp_path / "line.json"))
    assert result.returncode == 0, result.stderr
    events = json.loads((tmp_path / "line.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {0, 1, 2, 3}
    assert sum(event["cat"] == "forward" for event in spans) == 4 * 8
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_is_drawn(tmp_path: Path) -> None:
    out = tmp_path / "sweep.png"
    result = plan(
        "22b", "--layout", "8,1", "--nodes", "1", "--batch", "16", "--sweep", "nodes=1,2,4", "--out", str(out)
    )
    assert result.returncode == 0, result.stderr
    assert "nodes=4" in result.stdout
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_search_is_a_table_with_reasons() -> None:
    result = plan("22b", "--nodes", "2", "--batch", "64", "--search")
    assert result.returncode == 0, result.stderr
    assert "layouts fit" in result.stdout and "Why the first:" in result.stdout and "slower" in result.stdout


def test_training_configurations_can_be_planned() -> None:
    result = plan("run", "1.3b", "--cluster", "dgx-h100", "--layout", "1,1,8", "--batch", "512", "--json")
    assert json.loads(result.stdout)["devices"] == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mt-nlg", "--layout", "1,1,1", "--batch", "8"), "no model or training configuration"),
        (("22b", "--layout", "8x1", "--batch", "8"), "expected tensor,pipeline,data"),
        (("22b", "--layout", "8,1,1"), "--batch"),
        (("22b", "--batch", "8"), "--search"),
        (("22b", "--layout", "8,1,1", "--batch", "8", "--out", "plan.txt"), ".png"),
        (("22b", "--layout", "8,1,1", "--batch", "8", "--what-if", "stages=2"), "one of the keys"),
        (("22b", "--layout", "8,2,1", "--nodes", "1", "--batch", "8"), "it takes 2 nodes"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = plan(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_planning_takes_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, mtnlg\n"
        f"sys.argv = ['mtnlg', 'plan', *{RUN!r}]\n"
        "try: mtnlg.main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'deepspeed') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_dry_run_shows_the_planned_step() -> None:
    command = [str(BIN / "mtnlg"), "train", "configs/train/1.3b.yaml", "--dry-run", "--cluster", "dgx-a100"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parents[2]
    )
    assert " s planned, " in result.stderr


def test_metrics_get_the_plan_where_a_cluster_is_named(make_train_config: MakeTrainConfig) -> None:
    assert Prediction(make_train_config()).beside(1.5, 8) == {}
    values = Prediction(make_train_config(cluster="workstation")).beside(1.5, 8)
    assert values["step_seconds"] == 1.5
    assert 0 < values["planned_seconds"] < 1


@pytest.mark.slow
def test_calibration_writes_a_cluster_file(tmp_path: Path) -> None:
    out = tmp_path / "here.yaml"
    result = plan("calibrate", str(out), "--seconds", "2")
    assert result.returncode == 0, result.stderr
    values: dict[str, Any] = yaml.safe_load(out.read_text())
    assert values["device"]["cores"]["speedup"]["value"] >= 1
    planned = plan("tiny", "--cluster", str(out), "--layout", "1,2,1", "--batch", "4", "--json")
    assert json.loads(planned.stdout)["iteration_seconds"] > 0
