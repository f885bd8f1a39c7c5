"""The planned peak of memory against what a process really takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def measured(layers: int, hidden: int, batch: int, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.training.plan_memory", str(layers), str(hidden), str(batch)]
    result = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, timeout=300, check=True, cwd=ROOT
    )
    values: dict[str, float] = json.loads(result.stdout)
    return values


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to forget a peak")
def test_a_process_grows_as_planned() -> None:
    # Every tensor mapped and given back by itself: what is counted are tensors, not the holes of glibc's heap.
    exact = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    found = measured(6, 512, 4, {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", **exact})
    assert found["planned"] == pytest.approx(found["measured"], rel=0.10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch sees none")
def test_a_gpu_s_peak_is_as_planned() -> None:
    found = measured(12, 1024, 8, {})
    assert found["planned"] == pytest.approx(found["measured"], rel=0.10)
