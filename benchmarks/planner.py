"""Planned against measured: iterations that others published, and steps of small models on this machine.

The first part compares `mtnlg plan` with the runs of `configs/planner/published.yaml` and takes seconds. The second
calibrates this machine, trains six small models in as many layouts and compares the times of their steps.

    python -m benchmarks.planner              # about 6 minutes; writes benchmarks/results/planner.json
    python -m benchmarks.planner --published  # the first part alone, printed; nothing is written
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Bar, write_result
from foundation.config import read_yaml
from tests.conftest import write_token_folder
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics
from training.planner.calibrate import calibrate
from training.planner.cluster import Cluster, load_cluster
from training.planner.options import PlanOptions
from training.planner.planned import Planned
from training.planner.published import PublishedRun, published_runs
from training.planner.request import Request, load_model
from training.planner.search import search

# Name; layers, hidden size, heads; tensor, pipeline, data; batch, micro-batch, recomputation.
_RUNS = (
    ("10 M, one rank", (10, 256, 4), (1, 1, 1), (8, 4, "none")),
    ("30 M, one rank, recomputation", (8, 512, 8), (1, 1, 1), (8, 2, "full")),
    ("10 M, tensor 2", (10, 256, 4), (2, 1, 1), (8, 4, "none")),
    ("30 M, pipeline 2", (8, 512, 8), (1, 2, 1), (8, 1, "none")),
    ("10 M, data 2", (10, 256, 4), (1, 1, 2), (16, 4, "none")),
    ("30 M, tensor 2 x pipeline 2", (8, 512, 8), (2, 2, 1), (8, 2, "none")),
)
_VOCABULARY, _SEQUENCE = 8192, 512


def main() -> None:
    """Compare both and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="the published runs alone; nothing is written")
    parser.add_argument("--steps", type=int, default=16, help="of each small run; the first four do not count")
    parser.add_argument("--calibrate", type=float, default=60.0, help="seconds to calibrate for")
    arguments = parser.parse_args()
    published = _published()
    if arguments.published:
        return
    # Passive: threads that wait must not take a core from one that another programme has stopped.
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "passive"}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        calibrate(root / "machine.yaml", seconds=arguments.calibrate, ranks=4)
        machine = read_yaml(root / "machine.yaml")
        steps = _steps(root, load_cluster(str(root / "machine.yaml"), None, None), arguments.steps)
    seconds = _search_seconds()
    bars = [
        *(_bar(row, 0.05) for row in published if row["name"].startswith("announcement")),
        Bar("largest error of the other published runs", _largest(published, "announcement"), "share", at_most=0.10),
        Bar("largest error of six small runs on this machine", _largest(steps, "-"), "share", at_most=0.25),
        Bar("search for 530 B on 420 nodes", seconds, "s", at_most=10.0),
    ]
    write_result(
        "planner", {"published": published, "steps": steps, "machine": machine, "search_seconds": seconds}, bars
    )


def _published() -> list[dict[str, Any]]:
    rows = [_compared(run) for run in published_runs()]
    for row in rows:
        fitted = "fitted" if row["fitted"] else ""
        print(f"{row['name']:44} {row['seconds']:8.2f} {row['planned']:8.2f} {row['error']:+7.1%} {fitted}")
    return rows


def _compared(run: PublishedRun) -> dict[str, Any]:
    planned = run.request().planned()
    split = planned.iteration.split
    return {
        "name": run.name,
        "source": run.source,
        "fitted": run.fitted,
        "seconds": run.measured_seconds,
        "planned": planned.iteration.seconds,
        "error": planned.iteration.seconds / run.measured_seconds - 1,
        "bubble": split.bubble / split.total,
    }


def _steps(root: Path, machine: Cluster, steps: int) -> list[dict[str, Any]]:
    write_token_folder(root / "data", 300, tokens=400_000)
    rows = []
    for number, (name, shape, layout, batch) in enumerate(_RUNS):
        config = _config(root, number, shape, layout, batch, steps)
        run_local_workers(config)
        rate = [line["tokens_per_second"] for line in read_metrics(config.out) if "loss" in line][4:]
        tokens = config.training.global_batch_size * _SEQUENCE
        # Undisturbed steps: whatever else the machine does only makes them longer.
        measured = tokens / statistics.quantiles(rate, n=4)[2]
        planned = Planned(config, PlanOptions(), machine).iteration.seconds
        rows.append({"name": name, "seconds": measured, "planned": planned, "error": planned / measured - 1})
        print(f"{name:34} {measured:8.3f} {planned:8.3f} {planned / measured - 1:+7.1%}", flush=True)
    return rows


def _config(
    root: Path,
    number: int,
    shape: tuple[int, int, int],
    layout: tuple[int, int, int],
    batch: tuple[int, int, str],
    steps: int,
) -> TrainConfig:
    layers, hidden, heads = shape
    tensor, pipeline, data = layout
    size, micro_batch, recomputation = batch
    return TrainConfig.model_validate(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "sequence_length": _SEQUENCE,
                "vocab_size": _VOCABULARY,
            },
            "layout": {
                "tensor_parallel_size": tensor,
                "pipeline_parallel_size": pipeline,
                "data_parallel_size": data,
            },
            "data": {"path": str(root / "data")},
            "optimizer": {"warmup_tokens": 10**6, "decay_tokens": 10**9},
            "training": {
                "train_tokens": steps * size * _SEQUENCE,
                "global_batch_size": size,
                "micro_batch_size": micro_batch,
                "recomputation": recomputation,
                "validation_interval": 10**6,
                "validation_samples": 4,
            },
            "checkpoint": {"interval": 10**6},
            "out": str(root / f"run-{number}"),
        }
    )


def _search_seconds() -> float:
    started = time.perf_counter()
    search(Request(load_model("mt-nlg-530b"), load_cluster("selene", None, None), 8, 35, None, 1920, nodes=420))
    return time.perf_counter() - started


def _bar(row: dict[str, Any], allowed: float) -> Bar:
    return Bar(f"{row['name']}: error", abs(row["error"]), "share", at_most=allowed)


def _largest(rows: list[dict[str, Any]], but: str) -> float:
    return max(abs(float(row["error"])) for row in rows if not row["name"].startswith(but))


if __name__ == "__main__":
    main()
