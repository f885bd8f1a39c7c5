"""Kill a build at random moments, and start it again each time: does it end where one left alone does?"""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.common import Bar
from benchmarks.corpus_build import CORPUS, build, command, dataset, manifest_hashes

KILLS = 10
# What of the corpus is small enough to build a dozen times, and has work for every stage.
_FILES = {
    "wikipedia": "wikipedia_demo.jsonl.gz",
    "abstracts": "abstracts.jsonl.gz",
    "news": "news.jsonl.gz",
    "pages": "html/trafilatura_eval.jsonl.gz",
    "articles": "near_duplicates/articles_2500.jsonl.gz",
}


def measure(folder: Path, texts: Path, kills: int = KILLS, seed: int = 0) -> dict[str, Any]:
    """Moments and what they hit, and whether all manifests are those of the build left alone."""
    alone, killed = (_config(folder / name, texts) for name in ("alone", "killed"))
    seconds = build(alone)
    chance, finished = random.Random(seed), 0
    moments: list[dict[str, Any]] = []
    differing: set[str] = set()
    while len(moments) < kills:
        # About as many as it takes to get through: a start-up, and then some of the way.
        delay = chance.uniform(0.5, 0.5 * seconds)
        stage = _killed_after(killed, delay)
        if stage is None:
            # It ended before; the rest of the kills are another build's.
            differing |= _differing(killed, alone)
            shutil.rmtree(killed["out"])
            finished += 1
            continue
        moments.append({"seconds": delay, "stages_done": stage})
    build(killed)
    differing |= _differing(killed, alone)
    return {
        "left_alone_seconds": seconds,
        "kills": moments,
        "builds": finished + 1,
        "stages_that_differ": sorted(differing),
    }


def bars(found: dict[str, Any]) -> list[Bar]:
    """All kills, and nothing that differs."""
    return [
        Bar("builds killed at random moments", len(found["kills"]), "", at_least=KILLS),
        Bar("stages whose manifest differs from the build left alone", len(found["stages_that_differ"]), "", at_most=0),
    ]


def _config(out: Path, texts: Path) -> dict[str, Any]:
    return {
        "out": str(out),
        "shard_megabytes": 1,
        "datasets": [dataset(name, CORPUS / file) for name, file in _FILES.items()],
        "quality": {"positives": ["wikipedia", "abstracts"]},
        "decontaminate": {"texts": str(texts)},
    }


def _killed_after(config: dict[str, Any], seconds: float) -> list[str] | None:
    """The stages that were done when the build and all its processes were killed; None when it ended before."""
    process = subprocess.Popen(
        command(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        if process.wait(timeout=seconds) != 0:
            raise RuntimeError(f"the build of {config['out']} failed: look with {' '.join(command(config))}")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # What is in a session of its own notices that the build is gone.
        time.sleep(1.0)
        return [stage.parent.name for stage in sorted(Path(config["out"]).glob("*/manifest.json"))]
    return None


def _differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    mine, theirs = (manifest_hashes(Path(config["out"])) for config in (one, other))
    return {stage for stage in theirs if mine[stage] != theirs[stage]}
