"""run.json: every launch of a run, with the versions, the command, and the host of each rank."""

import os
import platform
import shlex
import sys
from collections import defaultdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foundation.files import read_json, write_json
from training.config import TrainConfig
from training.parallel.layout import Layout

LAUNCHES_FILE = "run.json"


def record_launch(config: TrainConfig, rank: int) -> None:
    """Append this launch to the run folder's run.json, the newest last. Collective; rank 0 writes."""
    hosts: list[str] = [""] * config.layout.world_size
    dist.all_gather_object(hosts, platform.node())
    if rank != 0:
        return
    path = config.out / LAUNCHES_FILE
    launches = read_json(path)["launches"] if path.is_file() else []
    write_json(path, {"launches": [*launches, _describe(config.layout, hosts)]})


def rank_map(layout: Layout, hosts: list[str]) -> dict[str, dict[str, str]]:
    """Which ranks each host has, and which pipeline stages and replicas these are; `hosts` in order of rank."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank, host in enumerate(hosts):
        ranks[host].append(rank)
    return {
        host: {
            "ranks": _spans(mine),
            "stages": _spans([layout.coordinate(rank).pipeline for rank in mine]),
            "replicas": _spans([layout.coordinate(rank).data for rank in mine]),
        }
        for host, mine in ranks.items()
    }


def _describe(layout: Layout, hosts: list[str]) -> dict[str, Any]:
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "folder": str(Path.cwd()),
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("mtnlg", "torch", "deepspeed", "numpy")},
        },
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "hosts": rank_map(layout, hosts),
    }


def _spans(numbers: list[int]) -> str:
    """[0, 1, 2, 7] as "0-2,7"."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ",".join("-".join(map(str, span)) for span in spans)
