"""A run that starts from somebody's GPT-2: the first loss is that model's, and the optimizer is new."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from conversion.hf import PREFIX
from conversion.open_source import open_source
from foundation.manifest import read_manifest
from tests.conftest import MakeTrainConfig
from tests.conversion.hf_folder import MODEL, assert_same_model, logits, save_gpt2, saved_weights
from tests.conversion.training_checkpoint import convert
from training.checkpoint.names import OPTIMIZER_STATES, checkpoint_root, optimizer_file, step_folder
from training.config import TrainConfig
from training.data.blend import training_samples
from training.local_workers import run_local_workers
from training.metrics import read_metrics


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "pp", "dp"), [(3, 1, 1), (1, 2, 1)])
def test_training_continues_from_it(
    tmp_path: Path, make_train_config: MakeTrainConfig, tp: int, pp: int, dp: int
) -> None:
    gpt2 = save_gpt2(tmp_path / "gpt2")
    config = make_train_config(tp, pp, dp, steps=1, name="run").model_copy(update={"model": MODEL})
    convert(
        tmp_path / "gpt2",
        config.out,
        to="training",
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
    )
    assert_is_beginning(config, gpt2, tmp_path / "untrained")

    run_local_workers(config)
    line = next(line for line in read_metrics(config.out) if "loss" in line)
    assert line["loss"] == pytest.approx(first_loss(config, gpt2), rel=1e-4)  # and not ln 300, a new model's
    convert(config.out, tmp_path / "trained", to="hf")
    trained = saved_weights(tmp_path / "trained")
    moved = trained[f"{PREFIX}ln_f.bias"] - gpt2.transformer.ln_f.bias.detach()
    # Adam's first step from zero moments moves every element by the learning rate, whatever the gradient.
    torch.testing.assert_close(moved.abs(), torch.full((96,), line["learning_rate"]), rtol=1e-2, atol=0)
    assert math.isfinite(logits(tmp_path / "trained").abs().max())


def assert_is_beginning(config: TrainConfig, gpt2: Any, out: Path) -> None:
    """The imported checkpoint is the model, at step 0, with a fresh optimizer."""
    step = step_folder(config.out, 0)
    manifest = read_manifest(step)
    assert manifest is not None
    assert {manifest.about[key] for key in ("step", "consumed_samples", "skipped_samples")} == {0}
    held = {state: load_file(step / optimizer_file(state, 0, 0, 0)).values() for state in OPTIMIZER_STATES}
    assert any(tensor.any() for tensor in held["master"])
    assert not any(tensor.any() for state in ("exp_avg", "exp_avg_sq") for tensor in held[state])
    convert(config.out, out, to="hf")
    assert_same_model(out, gpt2)


def first_loss(config: TrainConfig, gpt2: Any) -> float:
    samples = training_samples(config, build=False)
    tokens = torch.stack([torch.as_tensor(samples[number]).long() for number in range(8)])
    with torch.no_grad():
        scores = gpt2(tokens[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()))


def test_an_exports_step_is_not_the_new_runs(tmp_path: Path) -> None:
    save_gpt2(tmp_path / "gpt2")
    convert(tmp_path / "gpt2", tmp_path / "run", to="training")
    step = step_folder(tmp_path / "run", 0)
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["about"]["step"] = 300
    (step / "manifest.json").write_text(json.dumps(manifest))
    convert(tmp_path / "run", tmp_path / "export", to="hf")
    assert open_source(tmp_path / "export").step == 300
    convert(tmp_path / "export", tmp_path / "again", to="training")
    assert [path.name for path in checkpoint_root(tmp_path / "again").iterdir() if path.is_dir()] == ["step-00000000"]
