"""Fixtures that several rooms' tests share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foundation.formats import TOKENS
from foundation.manifest import write_manifest
from tests.conversion.training_checkpoint import write_byte_tokenizer
from training.config import TrainConfig
from training.data.megatron_index import indexed_dataset

MakeTrainConfig = Callable[..., TrainConfig]


def write_token_folder(folder: Path, vocab_size: int, tokens: int = 100_000, seed: int = 0) -> None:
    """A folder as `mtnlg data prepare` leaves it, of random documents over a small vocabulary."""
    megatron = indexed_dataset()
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for split, amount in (("train", tokens), ("validation", max(200, tokens // 20))):
        builder = megatron.IndexedDatasetBuilder(str(folder / f"{split}.bin"), dtype=np.uint16)
        while amount > 0:
            length = min(amount, int(generator.integers(5, 200)))
            # Something to learn: skewed first tokens, each mostly followed by the next number.
            document = np.minimum(generator.geometric(8 / vocab_size, length) - 1, vocab_size - 1)
            for place in range(1, length):
                if generator.random() < 0.7:
                    document[place] = (document[place - 1] + 1) % vocab_size
            builder.add_document(document.tolist(), [length])
            amount -= length
        builder.finalize(str(folder / f"{split}.idx"))
    (folder / "tokenizer").mkdir()
    write_byte_tokenizer(folder / "tokenizer")
    files = [path for path in folder.rglob("*") if path.is_file()]
    write_manifest(folder, TOKENS, {"vocab_size": vocab_size}, files)


@pytest.fixture(scope="session")
def token_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens of a vocabulary of 300."""
    folder = tmp_path_factory.mktemp("tokens") / "data"
    write_token_folder(folder, 300)
    return folder


@pytest.fixture
def make_train_config(token_folder: Path, tmp_path: Path) -> MakeTrainConfig:
    """A training configuration small enough for eight processes on two cores."""

    def make(
        tp: int = 1,
        pp: int = 1,
        dp: int = 1,
        *,
        steps: int = 10,
        name: str = "",
        save_every: int = 1000,
        keep_last: int = 2,
        peak: float = 1e-2,
        batch: int = 8,
        **training: Any,
    ) -> TrainConfig:
        sequence = 32
        return TrainConfig.model_validate(
            {
                "model": {
                    "num_layers": 4,
                    "hidden_size": 32,
                    "num_attention_heads": 4,
                    "sequence_length": sequence,
                    "vocab_size": 300,
                },
                "layout": {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp},
                "data": {"path": str(token_folder)},
                "optimizer": {
                    "learning_rate": peak,
                    "min_learning_rate": peak / 10,
                    "warmup_tokens": 2 * sequence * batch,
                    "decay_tokens": 20 * sequence * batch,
                },
                "training": {
                    "train_tokens": steps * sequence * batch,
                    "global_batch_size": batch,
                    "micro_batch_size": 2,
                    "precision": "fp32",
                    "validation_samples": 4,
                    **training,
                },
                "checkpoint": {"interval": save_every, "keep_last": keep_last},
                "out": str(tmp_path / (name or f"run-{tp}-{pp}-{dp}")),
            }
        )

    return make
