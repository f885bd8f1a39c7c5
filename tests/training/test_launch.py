"""Starting: on one machine, under torchrun, deepspeed and Slurm; and what is refused before or after."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from foundation.errors import UserError
from training.config import TrainConfig
from training.launch import first_slurm_host, train
from training.local_workers import run_local_workers
from training.metrics import CURVE_FILE, read_metrics

MakeConfig = Callable[..., TrainConfig]
BIN = Path(sys.executable).parent


# Launchers give a rank different numbers of threads, which decide the order of sums.
SAME_RUN = 1e-5


def losses(config: TrainConfig) -> list[float]:
    return [line["loss"] for line in read_metrics(config.out) if "loss" in line]


def config_file(config: TrainConfig, folder: Path) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_one_command_leaves_a_complete_run_folder(make_train_config: MakeConfig, tmp_path: Path) -> None:
    config = make_train_config(1, 2, 1, steps=4, validation_interval=2)
    result = run([str(BIN / "mtnlg"), "train", str(config_file(config, tmp_path))])
    assert result.returncode == 0, result.stderr
    assert "step 4/4" in result.stderr
    assert "validation loss" in result.stderr
    assert yaml.safe_load((config.out / "config.yaml").read_text()) == config.model_dump(mode="json")
    assert (config.out / CURVE_FILE).read_bytes().startswith(b"\x89PNG")
    assert [line["step"] for line in read_metrics(config.out) if "validation_loss" in line] == [0, 2, 4]
    assert "DeepSpeed" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_it_runs_unchanged_under_other_launchers(launcher: str, make_train_config: MakeConfig, tmp_path: Path) -> None:
    local, theirs = (make_train_config(2, 1, 1, steps=2, name=name) for name in ("local", "theirs"))
    run_local_workers(local)
    commands = {
        "torchrun": [str(BIN / "torchrun"), "--nproc_per_node=2", "--master-port=0", "--rdzv-backend=c10d",
                     "--rdzv-endpoint=127.0.0.1:0", "--no-python"],
        "deepspeed": [str(BIN / "deepspeed"), "--num_accelerators=2", f"--master_port={free_port()}",
                      "--no_python", "--no_local_rank"],
    }  # fmt: skip
    command = [*commands[launcher], str(BIN / "mtnlg"), "train", str(config_file(theirs, tmp_path))]
    result = run(command, DS_ACCELERATOR="cpu", PATH=f"{BIN}:{os.environ['PATH']}")
    assert result.returncode == 0, result.stderr
    assert losses(theirs) == pytest.approx(losses(local), abs=SAME_RUN, rel=0)


@pytest.mark.slow
def test_two_nodes_rendezvous_and_train(make_train_config: MakeConfig, tmp_path: Path) -> None:
    alone, together = (make_train_config(1, 2, 1, steps=2, name=name) for name in ("alone", "together"))
    run_local_workers(alone)
    path, port = config_file(together, tmp_path), free_port()
    agents = [
        subprocess.Popen(
            [str(BIN / "torchrun"), "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--rdzv-backend=c10d",
             f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=mtnlg", "--local-addr=127.0.0.1", "--no-python",
             str(BIN / "mtnlg"), "train", str(path)],
            env={**os.environ, "DS_ACCELERATOR": "cpu"},
            stderr=subprocess.PIPE,
        )
        for node in range(2)
    ]  # fmt: skip
    errors = [agent.communicate(timeout=300)[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], errors
    assert losses(together) == pytest.approx(losses(alone), abs=SAME_RUN, rel=0)


@pytest.mark.slow
def test_it_runs_unchanged_under_slurm_s_variables(make_train_config: MakeConfig, tmp_path: Path) -> None:
    config = make_train_config(1, 1, 2, steps=2)
    path = config_file(config, tmp_path)
    job = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
    tasks = [
        subprocess.Popen(
            [str(BIN / "mtnlg"), "train", str(path)],
            env={**os.environ, **job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    errors = [task.communicate(timeout=300)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], errors
    assert [line["step"] for line in read_metrics(config.out) if "loss" in line] == [1, 2]


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("alpha", "alpha"), ("a1,a2", "a1"), ("node[003-007,012],gpu1", "node003"), ("gpu1,node[1-2]", "gpu1")],
)
def test_slurm_s_first_host(nodes: str, host: str) -> None:
    assert first_slurm_host({"SLURM_JOB_NODELIST": nodes}) == host


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("layout.tensor_parallel_size=3", "does not divide the model's 4 attention heads; sizes that do: 1, 2, 4"),
        ("layout.pipeline_parallel_size=5", "a stage without a layer would hang; use at most 4"),
        ("training.global_batch_size=7", "not divisible by training.micro_batch_size 2"),
        ("data.path=nowhere", "no prepared data at nowhere; make it with: mtnlg data prepare"),
        ("model.vocab_size=200", "ids of a vocabulary of 300, more than model.vocab_size 200"),
        ("training.micro_batch=2", "training.micro_batch: unknown key; did you mean micro_batch_size?"),
        ("model.hidden_size=30", "hidden_size 30 is not divisible by num_attention_heads 4"),
    ],
)
def test_what_cannot_work_is_refused_before_a_worker_starts(
    override: str, message: str, make_train_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_train_config(1, 1, 1)
    with pytest.raises(UserError) as caught:
        train(config_file(config, tmp_path), [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not config.out.exists()


@pytest.mark.slow
def test_out_of_memory_is_one_clear_line(make_train_config: MakeConfig, tmp_path: Path) -> None:
    config = make_train_config(1, 1, 1)
    # The positions alone would take 2^50 x 32 x 4 bytes.
    overrides = [f"model.sequence_length={2**50}", f"training.train_tokens={2**54}"]
    result = run([str(BIN / "mtnlg"), "train", str(config_file(config, tmp_path)), *overrides])
    assert result.returncode == 2
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("mtnlg: rank 0 ran out of memory"), result.stderr
    assert "lower training.micro_batch_size" in last
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_is_named(make_train_config: MakeConfig) -> None:
    config = make_train_config(1, 2, 1, steps=100_000)
    killer = threading.Thread(target=_kill_rank_1_when_training, args=(config.out,), daemon=True)
    killer.start()
    with pytest.raises(UserError, match=r"rank 1 was killed \(SIGKILL\)"):
        run_local_workers(config)
    killer.join(10)


def _kill_rank_1_when_training(run_folder: Path) -> None:
    import multiprocessing

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len(read_metrics(run_folder)) > 2:
            victim = next(p for p in multiprocessing.active_children() if p.name == "mtnlg-rank-1")
            victim.kill()
            return
        time.sleep(0.1)
