"""What a run reports: metrics.jsonl, TensorBoard's events, the terminal, run.json."""

import io
import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from foundation.files import read_json
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import TENSORBOARD_FOLDER, MetricsFile, perplexity, read_metrics
from training.parallel.layout import Layout
from training.planner.flops import hardware_flops, model_flops
from training.report.launches import LAUNCHES_FILE, rank_map
from training.report.terminal import describe, step_reporter

MakeConfig = Callable[..., TrainConfig]
VALUES = {"loss": 2.5, "learning_rate": 1e-4, "batch_size": 8, "tokens_per_second": 1234.0, "tflops_per_device": 125.7}


def scalars(run: Path, name: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard reads them."""
    events = EventAccumulator(str(run / TENSORBOARD_FOLDER))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def write_steps(run: Path, resumed: int, steps: range) -> None:
    with MetricsFile(run, resumed) as metrics:
        for step in steps:
            metrics.write(step=step, tokens=10 * step, loss=100.0 * resumed + step)


def test_tensorboard_has_what_metrics_has(tmp_path: Path) -> None:
    write_steps(tmp_path, 0, range(1, 6))
    write_steps(tmp_path, 3, range(4, 7))
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 304.0), (5, 305.0), (6, 306.0)]
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path)] == expected
    assert scalars(tmp_path, "loss") == expected
    assert scalars(tmp_path, "tokens")[-1] == (6, 60.0)


def test_rewinding_drops_what_lies_beyond(tmp_path: Path) -> None:
    with MetricsFile(tmp_path, 0) as metrics:
        for step in range(1, 5):
            metrics.write(step=step, loss=1.0)
        metrics.rewind(2)
        metrics.write(step=3, loss=7.0)
    expected = [(1, 1.0), (2, 1.0), (3, 7.0)]
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path)] == expected
    assert scalars(tmp_path, "loss") == expected


def test_a_run_from_the_start_keeps_nothing_of_another(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        with MetricsFile(tmp_path, 0) as metrics:
            metrics.write(step=0, validation_loss=loss)
    assert read_metrics(tmp_path) == [{"step": 0, "validation_loss": 2.0}]
    assert scalars(tmp_path, "validation_loss") == [(0, 2.0)]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1}]


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (3.15, 23.336), (1e4, math.inf)])
def test_perplexity(loss: float, expected: float) -> None:
    assert perplexity(loss) == pytest.approx(expected, rel=1e-4)


def test_a_step_in_a_line() -> None:
    line = "loss 2.500  lr 1.00e-04  batch 8  1,234 tokens/s  126 TFLOP/s a device"
    assert describe(VALUES) == line
    assert describe({**VALUES, "model_flops_utilisation": 0.302}) == f"{line}  MFU 30.2%"


def test_without_a_terminal_there_is_a_line_now_and_then(make_train_config: MakeConfig) -> None:
    config = make_train_config(steps=100)
    console = Console(file=io.StringIO(), soft_wrap=True)
    tokens = config.training.train_tokens // 100
    with step_reporter(console, config, 0) as reporter:
        for step in range(1, 101):
            reporter.step(step, step * tokens, {**VALUES, "tokens_per_second": tokens / 60})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 20
    assert lines[0].startswith("step 5/100  loss 2.500")
    assert lines[0].endswith("ETA 1:35:00")
    assert lines[-1].endswith("ETA 0:00:00")


def test_a_terminal_shows_a_bar_with_the_step(make_train_config: MakeConfig) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False)
    with step_reporter(console, make_train_config(steps=4), 1) as reporter:
        reporter.step(2, 512, {**VALUES, "model_flops_utilisation": 0.302})
        reporter.note("step 2: validation loss 2.400")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("2/4", "loss 2.500", "lr 1.00e-04", "batch 8", "1,234 tokens/s", "126 TFLOP/s", "MFU 30.2%", "ETA 0:"):
        assert part in shown
    assert "step 2: validation loss 2.400" in shown


def test_the_rank_map_names_each_host_s_ranks_stages_and_replicas() -> None:
    layout = Layout(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=2)
    hosts = ["a", "a", "a", "a", "b", "b", "c", "c"]
    assert rank_map(layout, hosts) == {
        "a": {"ranks": "0-3", "stages": "0", "replicas": "0-1"},
        "b": {"ranks": "4-5", "stages": "1", "replicas": "0"},
        "c": {"ranks": "6-7", "stages": "1", "replicas": "1"},
    }
    assert rank_map(layout, ["a", "b"] * 4)["b"]["ranks"] == "1,3,5,7"


@pytest.mark.slow
def test_a_run_reports_all_of_it(make_train_config: MakeConfig) -> None:
    config = make_train_config(
        1, 2, 1, steps=4, name="run", save_every=2, validation_interval=2, peak_tflops=2.0, recomputation="full"
    )
    run_local_workers(config)
    metrics = read_metrics(config.out)
    for line in (line for line in metrics if "loss" in line):
        seconds = line["batch_size"] * 32 / line["tokens_per_second"]
        performed = hardware_flops(config.model, config.model.padded_vocab_size(1), 8, "full")
        needed = model_flops(config.model, config.model.padded_vocab_size(1), 8)
        assert line["tflops_per_device"] == pytest.approx(performed / seconds / 2 / 1e12)
        assert line["model_flops_utilisation"] == pytest.approx(needed / seconds / 2 / 2e12)
    validations = [line for line in metrics if "validation_loss" in line]
    assert [line["step"] for line in validations] == [0, 2, 4]
    assert all(line["validation_perplexity"] == math.exp(line["validation_loss"]) for line in validations)
    assert [step for step, _ in scalars(config.out, "loss")] == [1, 2, 3, 4]
    assert [step for step, _ in scalars(config.out, "validation_perplexity")] == [0, 2, 4]
    (launch,) = read_json(config.out / LAUNCHES_FILE)["launches"]
    assert launch["versions"]["deepspeed"] == version("deepspeed")
    assert launch["versions"]["mtnlg"] == version("mtnlg")
    assert "pytest" in launch["command"]
    (host,) = launch["hosts"].values()
    assert host == {"ranks": "0-1", "stages": "0-1", "replicas": "0"}

    longer = config.model_copy(
        update={"training": config.training.model_copy(update={"train_tokens": config.training.train_tokens * 2})}
    )
    run_local_workers(longer)
    assert len(read_json(config.out / LAUNCHES_FILE)["launches"]) == 2
    assert [step for step, _ in scalars(config.out, "loss")] == list(range(1, 9))
