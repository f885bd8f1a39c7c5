"""A tiny model, really trained over four processes and converted once for all serving tests."""

from pathlib import Path

import pytest

from tests.conftest import write_token_folder
from tests.conversion.training_checkpoint import convert
from training.config import TrainConfig
from training.local_workers import run_local_workers

# Heads of 32, the smallest that vLLM computes on a CPU; a vocabulary that is exactly the test tokenizer's.
SERVABLE = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "sequence_length": 128, "vocab_size": 259}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run` (trained in fp32 at tensor 2 x pipeline 2), `hf`, `vllm1` and `vllm2`."""
    folder = tmp_path_factory.mktemp("models")
    write_token_folder(folder / "data", 259)
    config = {
        "model": SERVABLE,
        "layout": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        "data": {"path": str(folder / "data")},
        "optimizer": {"learning_rate": 5e-3, "warmup_tokens": 4096, "decay_tokens": 10**5},
        "training": {
            "train_tokens": 40 * 1024,
            "global_batch_size": 8,
            "micro_batch_size": 2,
            "precision": "fp32",
        },
        "out": str(folder / "run"),
    }
    run_local_workers(TrainConfig.model_validate(config))
    convert(folder / "run", folder / "hf", to="hf")
    for size in (1, 2):
        convert(folder / "run", folder / f"vllm{size}", to="vllm", tensor_parallel_size=size)
    return folder
