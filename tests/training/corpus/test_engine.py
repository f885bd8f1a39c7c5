"""Daft as the engine: processes of their own, what they refuse, and what is left when they or their parent die."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from foundation.errors import UserError
from tests.training.corpus import engine_functions
from tests.training.corpus.source_files import write_lines
from training.corpus.engine import DaftEngine

pytest.importorskip("daft")

REPOSITORY = Path(__file__).resolve().parents[3]
_DEADLINE_SECONDS = 120.0


@pytest.fixture(scope="module")
def engine() -> DaftEngine:
    """Two workers of this machine."""
    return DaftEngine(workers=2)


def test_items_are_worked_on_in_other_processes_and_come_as_they_finish(engine: DaftEngine) -> None:
    results = [result.split() for result in engine.map(engine_functions.slow, ["1.5", *["0.01"] * 6])]
    assert results[-1][0] == "1.5"
    assert len({process for _, process in results} - {str(os.getpid())}) == 2


def test_a_worker_keeps_what_it_made(engine: DaftEngine) -> None:
    results = list(engine.map(engine_functions.Counter(), [str(item) for item in range(8)]))
    processes = {result.split()[0] for result in results}
    assert sorted(results) == sorted(
        f"{process} {call}"
        for process in processes
        for call in range(1, 1 + sum(result.startswith(f"{process} ") for result in results))
    )
    assert len(processes) <= 2


def test_nothing_to_do_starts_nothing(engine: DaftEngine) -> None:
    assert list(engine.map(engine_functions.die, [])) == []


def test_what_a_user_can_mend_arrives_as_such(engine: DaftEngine) -> None:
    with pytest.raises(UserError, match=r"^item 3 is refused$"):
        list(engine.map(engine_functions.refuse, ["1", "2", "3", "4"]))


def test_a_fault_of_the_program_arrives_with_its_trace(engine: DaftEngine) -> None:
    with pytest.raises(Exception, match="item 3 has a fault") as caught:
        list(engine.map(engine_functions.fail, ["1", "2", "3", "4"]))
    assert not isinstance(caught.value, UserError)


def test_a_worker_that_dies_is_told_of(engine: DaftEngine) -> None:
    with pytest.raises(UserError, match="a worker process died"):
        list(engine.map(engine_functions.die, ["1", "2", "3", "4"]))


def test_frames_are_daft_s(engine: DaftEngine) -> None:
    daft = engine.daft()
    frame = daft.from_pydict({"band": [1, 2, 1]}).groupby("band").agg(daft.col("band").count().alias("size"))
    assert frame.sort("band").to_pydict() == {"band": [1, 2], "size": [2, 1]}


@pytest.fixture(scope="module")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve small shards in two datasets, for the made stages; built once, left alone, in `whole`."""
    tmp_path = tmp_path_factory.mktemp("corpus")
    for number in range(12):
        rows = [{"text": f"document {number} {row}{' drop' * (row == 2)}"} for row in range(20)]
        # Longer than half a shard, so that each file is a shard.
        rows.append({"text": f"{number} {'x' * 600_000}"})
        write_lines(tmp_path / "sources" / ("books" if number % 3 == 0 else "web") / f"{number}.jsonl", rows)
    datasets = [{"name": name, "paths": [str(tmp_path / "sources" / name)]} for name in ("books", "web")]
    path = tmp_path / "corpus.yaml"
    path.write_text(yaml.safe_dump({"out": "OUT", "shard_megabytes": 1, "datasets": datasets}))
    finish(start(path, tmp_path / "whole"))
    return path


def start(configuration: Path, out: Path, *address: str) -> subprocess.Popen[str]:
    own = configuration.with_name(f"{out.name}.yaml")
    own.write_text(configuration.read_text().replace("OUT", str(out)))
    command = [sys.executable, "-m", "tests.training.corpus.made_build", str(own), *address]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=_DEADLINE_SECONDS)
    assert process.returncode == 0, errors


def manifests(out: Path) -> dict[str, bytes]:
    found = {path.parent.name: path.read_bytes() for path in out.glob("*/manifest.json")}
    assert len(found) == 4
    return found


def children(process: int) -> Iterator[int]:
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        yield from map(int, path.read_text().split())


def wait_for(condition: object, what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_builds_end_as_one_left_alone(configuration: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    draw = random.Random(7)
    for target in sorted(draw.sample(range(1, 36), 3)):
        process = start(configuration, out)
        wait_for(
            lambda process=process, target=target: (
                process.poll() is not None or sum(1 for _ in out.glob("*/records/*/*.json")) >= target
            ),
            "the build wrote nothing",
        )
        workers = list(children(process.pid))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=_DEADLINE_SECONDS)
        assert process.returncode == -signal.SIGKILL
        wait_for(
            lambda workers=workers: not any(Path(f"/proc/{worker}").exists() for worker in workers),
            "workers outlive their build",
        )
    finish(start(configuration, out))
    assert manifests(out) == manifests(configuration.parent / "whole")
    texts = (out / "tokenise" / "texts.txt").read_text().split("\n")
    assert len(texts) == len(set(texts)) == 12 * 20
    assert not list(out.rglob("*.tmp"))


@pytest.mark.slow
def test_a_ray_cluster_gives_the_same(configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    # Else Ray would make a token of its own, and keep it in the home folder.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex * 2)
    finish(start(configuration, tmp_path / "ray", "local"))
    assert manifests(tmp_path / "ray") == manifests(configuration.parent / "whole")
