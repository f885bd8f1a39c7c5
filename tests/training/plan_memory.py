"""A process of its own: what training steps add to its memory at most, beside what the plan says, as JSON.

The first, tiny model loads the libraries and whatever they keep, so that only the second one's memory is counted.
"""

import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.training_steps import join_alone
from training.config import TrainConfig
from training.engine import build_engine
from training.planner.memory import stage_memories


def configuration(layers: int, hidden: int, batch: int) -> TrainConfig:
    """One rank, bf16."""
    return TrainConfig.model_validate(
        {
            "model": {
                "num_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": hidden // 64,
                "sequence_length": 512,
                "vocab_size": 1024,
            },
            "data": {"path": "unused"},
            "training": {"train_tokens": 1, "global_batch_size": batch, "micro_batch_size": batch},
            "out": "unused",
        }
    )


def step(config: TrainConfig) -> object:
    """Two steps, after which all that stays is there; the engine, so that it stays."""
    engine = build_engine(config, rank=0)
    engine._settled = True  # freed memory goes back, so that what is measured is what tensors take
    device = engine.deepspeed.device
    tokens = torch.randint(0, 1024, (config.training.global_batch_size, 513), device=device)
    for _ in range(2):
        batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        engine.train_batch(iter([batch]), config.training.global_batch_size, 1e-4, first_sample=0)
    return engine


def resident(key: str) -> int:
    """VmRSS or VmHWM, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def main() -> None:
    """Print the planned and the measured growth."""
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    layers, hidden, batch = map(int, sys.argv[1:4])
    join_alone()
    small = step(configuration(1, 64, 1))
    config = configuration(layers, hidden, batch)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        large = step(config)
        measured = torch.cuda.max_memory_allocated() - before
    else:
        # Forget the peak so far.
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        large = step(config)
        measured = resident("VmHWM") - before
    assert small is not None and large is not None
    planned = stage_memories(config)[0].total
    os.write(output, json.dumps({"planned": planned, "measured": measured}).encode())


if __name__ == "__main__":
    main()
