"""Months of training: killed anywhere, hung, asked to stop, diverging, out of disk."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from foundation.errors import UserError
from foundation.manifest import MANIFEST
from training.checkpoint.commit import newest_checkpoint
from training.checkpoint.names import checkpoint_root, step_folder
from training.config import TrainConfig
from training.local_workers import run_local_workers
from training.metrics import read_metrics

pytestmark = pytest.mark.slow
MakeConfig = Callable[..., TrainConfig]
MTNLG = str(Path(sys.executable).parent / "mtnlg")
STEPS = 12


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(run) if "loss" in line]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.name}/{name}": value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()
    }


@contextmanager
def meanwhile(action: Callable[[], Any]) -> Iterator[None]:
    """Run `action` in a thread beside the block."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the moment to act never came"
        time.sleep(0.002)


def command(config: TrainConfig) -> list[str]:
    """`mtnlg train` on a file with this configuration."""
    path = config.out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return [MTNLG, "train", str(path)]


def run_command(config: TrainConfig) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(config), capture_output=True, text=True, timeout=240, check=False)


def send(rank: int, number: signal.Signals) -> None:
    process = next(process for process in active_children() if process.name == f"mtnlg-rank-{rank}")
    assert process.pid is not None
    os.kill(process.pid, number)


def is_saving(run: Path) -> bool:
    """A checkpoint's folder is there and its manifest is not yet."""
    return any(not (folder / MANIFEST).is_file() for folder in checkpoint_root(run).glob("step-*"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "before the first step": lambda run: (run / "metrics.jsonl").is_file(),
    "between two checkpoints": lambda run: len(losses(run)) >= 3,
    "inside a save": is_saving,
    "after a commit": lambda run: (step_folder(run, 8) / MANIFEST).is_file(),
}


def test_killed_anywhere_it_ends_with_the_same_weights(make_train_config: MakeConfig) -> None:
    def make(name: str) -> TrainConfig:
        return make_train_config(1, 2, 2, steps=STEPS, name=name, save_every=4)

    left_alone, killed = make("left-alone"), make("killed")
    run_local_workers(left_alone)
    for rank, moment in enumerate(MOMENTS.values()):

        def act(rank: int = rank, moment: Callable[[Path], bool] = moment) -> None:
            wait_for(lambda: moment(killed.out))
            send(rank, signal.SIGKILL)

        with meanwhile(act), pytest.raises(UserError, match=f"rank {rank} was killed"):
            run_local_workers(killed)
    run_local_workers(killed)
    assert losses(killed.out) == losses(left_alone.out)
    ours, theirs = (weights(step_folder(run.out, STEPS)) for run in (killed, left_alone))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_unfinished_checkpoint_is_passed_over_and_said_so(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 1, 1, steps=8, save_every=4)
    run_local_workers(make_train_config(1, 1, 1, steps=4, save_every=4))
    shutil.copytree(step_folder(config.out, 4), step_folder(config.out, 6))
    (step_folder(config.out, 6) / MANIFEST).unlink()
    said = run_command(config).stderr
    assert f"{step_folder(config.out, 6)} was never finished and is removed" in said
    assert f"resuming {step_folder(config.out, 4)} at step 4" in said


def test_a_stopped_rank_ends_the_job_and_is_named(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 2, 1, steps=100_000)
    config = config.model_copy(update={"health": config.health.model_copy(update={"hang_timeout_seconds": 15.0})})

    def stop() -> None:
        wait_for(lambda: len(losses(config.out)) > 3)
        send(1, signal.SIGSTOP)

    with meanwhile(stop), pytest.raises(UserError, match=r"rank 1 on \S+ has given no sign of life for \d+ s"):
        run_local_workers(config)
    assert active_children() == []


def test_sigterm_saves_and_exits_0_and_the_same_command_continues(make_train_config: MakeConfig) -> None:
    whole = make_train_config(2, 1, 1, steps=100, name="whole")
    stopped = make_train_config(2, 1, 1, steps=100, name="stopped")
    process = subprocess.Popen(command(stopped), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(losses(stopped.out)) > 3)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    assert "as asked; the same command continues" in said
    newest = newest_checkpoint(stopped.out)
    assert newest is not None
    assert newest[1].about["step"] == len(losses(stopped.out)) < 100
    run_local_workers(stopped)
    run_local_workers(whole)
    assert losses(stopped.out) == losses(whole.out)


def test_a_diverged_run_skips_updates_and_then_ends(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 1, 1, steps=50, peak=1e30)
    config = config.model_copy(update={"health": config.health.model_copy(update={"max_skipped_steps": 4})})
    with pytest.raises(UserError, match=r"not finite for 4 steps in a row, the last of them step \d+ \(samples"):
        run_local_workers(config)


def test_a_spike_rolls_back_and_leaves_its_samples_out(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 2, 1, steps=8, save_every=1)
    # So low a threshold that the first loss that rises is a spike; the second one ends the run.
    health = config.health.model_copy(update={"spike_threshold": 1e-9, "spike_window": 1, "max_rollbacks": 1})
    config = config.model_copy(update={"health": health})
    rising = _first_rise(make_train_config)
    result = run_command(config)
    assert result.returncode == 2
    said = result.stderr
    assert "rolled back 1 times already" in said.splitlines()[-1]
    assert f"step {rising} (samples {8 * (rising - 1)} to {8 * rising - 1}): loss" in said
    assert "rolling back, and skipping these samples" in said
    assert f"resuming {step_folder(config.out, rising - 1)} at step {rising - 1}" in said
    newest = newest_checkpoint(config.out)
    assert newest is not None
    assert newest[1].about["skipped_samples"] == 8


def _first_rise(make_train_config: MakeConfig) -> int:
    plain = make_train_config(1, 2, 1, steps=8, name="plain")
    run_local_workers(plain)
    history = losses(plain.out)
    return next(step for step in range(2, len(history) + 1) if history[step - 1] > history[step - 2])


def test_a_full_disk_ends_the_run_in_one_line_and_keeps_the_checkpoints_before(
    make_train_config: MakeConfig,
) -> None:
    config = make_train_config(1, 1, 1, steps=4, save_every=4)
    run_local_workers(config)
    longer = make_train_config(1, 1, 1, steps=8, save_every=4)
    # A limit on the size of a file stands for the disk: writing beyond it fails.
    limited = ["bash", "-c", f"trap '' XFSZ; ulimit -f 64; exec {' '.join(command(longer))}"]
    result = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2, result.stderr
    assert "a checkpoint could not be written" in result.stderr.strip().splitlines()[-1]
    newest = newest_checkpoint(config.out)
    assert newest is not None
    assert newest[0] == step_folder(config.out, 4)
