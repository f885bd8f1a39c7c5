"""`mtnlg train`: checks before anything starts, then this machine's workers, or this one worker."""

import os
import shutil
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from foundation.config import load_config, write_config
from foundation.console import error_console
from foundation.errors import UserError
from foundation.manifest import read_manifest
from training.checkpoint.names import checkpoint_root
from training.config import TrainConfig
from training.data.prepare import TOKENIZER_FOLDER
from training.local_workers import run_local_workers
from training.planner.plan import print_summary


def train(path: Path, overrides: Sequence[str], *, restart: bool = False) -> None:
    """Run the configuration at `path`. Raises UserError before any worker starts when it cannot work."""
    config = load_config(TrainConfig, path, overrides)
    config.check()
    check_data(config)
    _adopt_slurm(os.environ)
    rank = os.environ.get("RANK")
    if rank is None:
        _open_run(config, restart)
        run_local_workers(config)
        return
    if rank == "0":
        _open_run(config, restart)
    from training.worker import run_worker

    run_worker(config)


def _open_run(config: TrainConfig, restart: bool) -> None:
    if restart:
        shutil.rmtree(checkpoint_root(config.out), ignore_errors=True)
    config.out.mkdir(parents=True, exist_ok=True)
    write_config(config, config.out / "config.yaml")
    print_summary(config, error_console())


def check_data(config: TrainConfig) -> None:
    """Raise UserError unless every source is complete, fits the model's vocabulary, and has the same tokenizer."""
    tokenizers = set()
    for source in config.data.sources:
        manifest = read_manifest(source.path)
        if manifest is None:
            raise UserError(
                f"no prepared data at {source.path}; make it with: "
                f"mtnlg data prepare {source.path} --data FILE_OR_FOLDER"
            )
        if manifest.about["vocab_size"] > config.model.vocab_size:
            raise UserError(
                f"{source.path} holds ids of a vocabulary of {manifest.about['vocab_size']}, more than "
                f"model.vocab_size {config.model.vocab_size}"
            )
        tokenizers.add(manifest.files[f"{TOKENIZER_FOLDER}/vocab.json"].sha256)
        if len(tokenizers) > 1:
            raise UserError(f"{source.path} was tokenised with another vocabulary than the sources before it")


def _adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Under `srun`, give Slurm's variables the names that torchrun and deepspeed use."""
    if "RANK" in environment or int(environment.get("SLURM_NTASKS", "1")) < 2 or "SLURM_PROCID" not in environment:
        return
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["WORLD_SIZE"] = environment["SLURM_NTASKS"]
    environment["LOCAL_RANK"] = environment["SLURM_LOCALID"]
    environment.setdefault("MASTER_ADDR", first_slurm_host(environment))
    environment.setdefault("MASTER_PORT", str(20000 + int(environment["SLURM_JOB_ID"]) % 20000))


def first_slurm_host(environment: Mapping[str, str]) -> str:
    """The first host of a Slurm node list: `node[003-007,012],gpu1` gives `node003`."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
    prefix, bracket, rest = nodes.partition("[")
    if not bracket or "," in prefix:
        return nodes.split(",")[0]
    inside, _, suffix = rest.partition("]")
    return prefix + inside.replace("-", ",").split(",")[0] + suffix.split(",")[0]
