"""Kill a training job at random moments, and start it again each time: does it end where one left alone does?

Also measures what a checkpoint costs a step: the stall of an asynchronous save beside a blocking one.

    python -m benchmarks.survival            # writes benchmarks/results/survival.json
"""

import argparse
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from safetensors.torch import load_file

from benchmarks.common import Bar, write_result
from foundation.errors import UserError
from tests.conftest import write_token_folder
from training.checkpoint.names import step_folder
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics

_STEPS = 400


def main() -> None:
    """Run both parts and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="moments to kill at")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the ranks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_token_folder(root / "data", 300)
        kills = _kill_and_compare(root, arguments.kills, random.Random(arguments.seed))
        stalls = _stalls(root)
    bars = [Bar("runs killed at random moments that end with the same weights", kills["equal"], "share", at_least=1.0)]
    write_result("survival", {"kills": kills, "stall": stalls}, bars)


def _config(root: Path, name: str, steps: int = _STEPS, *, asynchronous: bool = True, hidden: int = 32) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": {
                "num_layers": 4,
                "hidden_size": hidden,
                "num_attention_heads": 4,
                "sequence_length": 32,
                "vocab_size": 300,
            },
            "layout": {"pipeline_parallel_size": 2, "data_parallel_size": 2},
            "data": {"path": str(root / "data")},
            "optimizer": {"learning_rate": 3e-3, "warmup_tokens": 2048, "decay_tokens": 10**6},
            "training": {
                "train_tokens": steps * 256,
                "global_batch_size": 8,
                "micro_batch_size": 2,
                "precision": "fp32",
                "validation_interval": 10**6,
            },
            "checkpoint": {"interval": 5, "asynchronous": asynchronous},
            "out": str(root / name),
        }
    )


def _kill_and_compare(root: Path, count: int, chance: random.Random) -> dict[str, Any]:
    alone, killed = _config(root, "alone"), _config(root, "killed")
    started = time.perf_counter()
    run_local_workers(alone)
    seconds = time.perf_counter() - started
    moments = []
    for _ in track(range(count), description="killing"):
        delay, rank = chance.uniform(0.3, max(1.0, seconds / 3)), chance.randrange(killed.layout.world_size)
        timer = threading.Timer(delay, _kill, args=(rank,))
        timer.start()
        outcome = "ended before"
        try:
            run_local_workers(killed)
        except UserError as error:
            outcome = str(error)
        timer.cancel()
        moments.append({"seconds": delay, "rank": rank, "outcome": outcome, "steps_done": _steps(killed)})
    run_local_workers(killed)
    ours, theirs = (_weights(step_folder(config.out, _STEPS)) for config in (killed, alone))
    equal = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    killed_runs = sum("was killed" in str(moment["outcome"]) for moment in moments)
    return {"equal": float(equal), "killed_runs": killed_runs, "left_alone_seconds": seconds, "moments": moments}


def _kill(rank: int) -> None:
    for process in multiprocessing.active_children():
        if process.name == f"mtnlg-rank-{rank}":
            process.kill()


def _steps(config: TrainConfig) -> int:
    return max((line["step"] for line in read_metrics(config.out) if "loss" in line), default=0)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {f"{file.name}/{name}": value for file in files for name, value in load_file(file).items()}


def _stalls(root: Path) -> dict[str, float]:
    """Median seconds that a step waits for a save of about 25 M parameters with their optimizer."""
    medians = {}
    for name, asynchronous in (("asynchronous", True), ("blocking", False)):
        config = _config(root, name, steps=30, asynchronous=asynchronous, hidden=704)
        run_local_workers(config)
        key = "checkpoint_stall_seconds"
        stalls = [line[key] for line in read_metrics(config.out) if key in line]
        # Both wait for the last one.
        medians[f"{name}_seconds"] = statistics.median(stalls[:-1])
    return medians


if __name__ == "__main__":
    main()
