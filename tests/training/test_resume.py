"""Checkpoints: resuming is the same as never having stopped, and what is torn is passed over."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from foundation.errors import UserError
from foundation.manifest import MANIFEST, check_manifest, read_manifest
from training.checkpoint.commit import newest_checkpoint
from training.checkpoint.names import checkpoint_root, step_folder
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics

MakeConfig = Callable[..., TrainConfig]
TOLERANCE = {"fp32": 1e-6, "bf16": 1e-4}


def history(run: Path) -> list[dict[str, Any]]:
    """Each step's line, without what only measures time."""
    kept = ("step", "tokens", "loss", "learning_rate", "batch_size", "gradient_norm")
    return [{key: line[key] for key in kept} for line in read_metrics(run) if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.name}:{name}": tensor
        for path in sorted(folder.glob("weights-*"))
        for name, tensor in load_file(path).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_resuming_is_bit_identical(make_train_config: MakeConfig, precision: str) -> None:
    whole = make_train_config(2, 2, 1, steps=6, name="whole", precision=precision, save_every=3)
    run_local_workers(whole)
    run_local_workers(make_train_config(2, 2, 1, steps=3, name="parts", precision=precision))
    rest = make_train_config(2, 2, 1, steps=6, name="parts", precision=precision)
    run_local_workers(rest)
    assert history(rest.out) == history(whole.out)
    ours, theirs = (weights(checkpoint_root(run.out) / "step-00000006") for run in (rest, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_a_torn_or_changed_checkpoint_is_passed_over(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 1, 1, steps=3, save_every=1, keep_last=3)
    run_local_workers(config)
    root = checkpoint_root(config.out)
    assert (root / "latest").read_text() == "step-00000003"
    newest = newest_checkpoint(config.out)
    assert newest is not None
    assert newest[0].name == "step-00000003"
    assert newest[1].about["consumed_samples"] == 24
    assert check_manifest(*newest) == []
    (root / "step-00000003" / MANIFEST).unlink()
    changed = next((root / "step-00000002").glob("weights-*"))
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    newest = newest_checkpoint(config.out)
    assert newest is not None
    assert newest[0].name == "step-00000001"
    run_local_workers(config)
    assert [line["step"] for line in read_metrics(config.out) if "loss" in line] == [1, 2, 3]
    shutil.rmtree(root)
    assert newest_checkpoint(config.out) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "precision"),
    [
        ((2, 2, 1), (1, 1, 2), "fp32"),
        ((1, 2, 2), (4, 1, 1), "fp32"),
        ((1, 1, 1), (2, 2, 2), "bf16"),
        ((2, 1, 2), (1, 4, 1), "bf16"),
    ],
    ids=str,
)
def test_any_layout_continues_any_other(
    make_train_config: MakeConfig, before: tuple[int, int, int], after: tuple[int, int, int], precision: str
) -> None:
    # Layouts round bf16 differently: about 0.008 nats a token, which only a batch of some size averages out.
    batch = 8 if precision == "fp32" else 1024
    same = {"steps": 8, "precision": precision, "peak": 1e-3, "batch": batch, "micro_batch_size": batch // 8}
    whole = make_train_config(*before, name="whole", save_every=4, **same)
    run_local_workers(whole)
    rest = make_train_config(*after, name="rest", **same)
    shutil.copytree(step_folder(whole.out, 4), step_folder(rest.out, 4))
    run_local_workers(rest)
    expected, ours = ([line["loss"] for line in history(run.out)] for run in (whole, rest))
    assert ours == pytest.approx(expected[4:], abs=TOLERANCE[precision], rel=0)


@pytest.mark.slow
def test_another_model_is_refused_by_name(make_train_config: MakeConfig) -> None:
    run_local_workers(make_train_config(1, 1, 1, steps=1, name="run"))
    config = make_train_config(1, 1, 1, steps=2, name="run")
    deeper = config.model_copy(update={"model": config.model.model_copy(update={"num_layers": 5})})
    with pytest.raises(UserError, match=r"is of another model \(num_layers 4 instead of 5\)"):
        run_local_workers(deeper)


@pytest.mark.slow
def test_the_manifest_lists_every_file(make_train_config: MakeConfig) -> None:
    config = make_train_config(2, 1, 1, steps=1)
    run_local_workers(config)
    folder = checkpoint_root(config.out) / "step-00000001"
    manifest = read_manifest(folder)
    assert manifest is not None
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set(manifest.files) == files - {MANIFEST}
    assert {"tokenizer/vocab.json", "tokenizer/merges.txt"} < files
