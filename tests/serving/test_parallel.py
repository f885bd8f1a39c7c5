"""The same greedy tokens however a model is cut and replicated, and however it comes; replicas that die or hang."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from serving.engine import note_outputs, replica_of
from tests.serving.greedy import LENGTH, PROMPTS, greedy_tokens, served_tokens, transformers_logits
from tests.serving.running_server import (
    END_SECONDS,
    ROOT,
    START_SECONDS,
    RunningServer,
    running_server,
    serve_command,
)
from tests.serving.test_life import assert_gone, shared_memory


def outputs_of(*replicas: int) -> Any:
    """An engine with three replicas whose outputs come from these, in this order."""
    waiting = iter(replicas)

    async def receive() -> SimpleNamespace:
        return SimpleNamespace(engine_index=next(waiting))

    return SimpleNamespace(engine_core=SimpleNamespace(get_output_async=receive, engine_ranks_managed=[0, 1, 2]))


def test_a_replica_that_works_does_not_hide_one_that_hangs() -> None:
    noted: list[int] = []
    replicas = (0, 0, 1, 0, 2, 2, 1, 0)
    engine = outputs_of(*replicas)
    note_outputs(engine, lambda: noted.append(len(noted)))

    async def receive(count: int) -> None:
        for _ in range(count):
            await engine.engine_core.get_output_async()

    asyncio.run(receive(4))
    assert len(noted) == 0
    asyncio.run(receive(1))
    assert len(noted) == 1
    asyncio.run(receive(3))
    assert len(noted) == 2


def test_a_context_always_goes_to_the_same_replica() -> None:
    engine = outputs_of()
    chosen = [replica_of(engine, [number, 7]) for number in range(60)]
    assert chosen == [replica_of(engine, [number, 7]) for number in range(60)]
    assert set(chosen) == {0, 1, 2}
    engine.engine_core.engine_ranks_managed = [0]
    assert replica_of(engine, [1]) is None


@pytest.fixture(scope="module")
def expected(models: Path) -> list[list[int]]:
    return greedy_tokens(transformers_logits(models / "hf"), PROMPTS, LENGTH)[0]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MTNLG_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_training_run_in_stages(models: Path, expected: list[list[int]], cache: Path) -> None:
    pytest.importorskip("vllm")
    before = shared_memory()
    with running_server(str(models / "run"), "--pipeline-parallel-size", "2") as server:
        processes = server.descendants()
        assert served_tokens(server.url, "run", PROMPTS, LENGTH) == expected
        assert server.stop() == 0
    assert [path.name[-3:] for path in (cache / "converted").glob("[!.]*")] == ["-hf"]
    assert_gone(processes)
    assert shared_memory() <= before


@pytest.mark.slow
def test_a_training_run_in_replicas_of_which_one_dies(models: Path, expected: list[list[int]], cache: Path) -> None:
    pytest.importorskip("vllm")
    with running_server(str(models / "run"), "--data-parallel-size", "2", "--max-num-seqs", "4") as server:
        # Python's own resource tracker stays with the server.
        before = [process for process in server.descendants() if "VLLM" in " ".join(process.cmdline())]
        assert len(before) == 5, "two engines, a worker each, and what balances between them"
        assert served_tokens(server.url, "run", PROMPTS, LENGTH) == expected
        assert running_bound(server) == 8
        engines(before)[0].kill()
        started = time.monotonic()
        while "the engine is back" not in "".join(server.output):
            assert time.monotonic() - started < START_SECONDS
            time.sleep(0.2)
        assert_gone(before)
        assert served_tokens(server.url, "run", PROMPTS[:2], LENGTH) == expected[:2]
        after = server.descendants()
        assert server.stop() == 0
    assert_gone(after)
    assert [path.name[-9:] for path in (cache / "converted").glob("[!.]*")] == ["-tensor-1"]


@pytest.mark.slow
def test_one_of_two_replicas_hangs(models: Path) -> None:
    pytest.importorskip("vllm")
    with running_server(str(models / "vllm1"), "--data-parallel-size", "2", "--engine-restarts", "0") as server:
        processes = server.descendants()
        engines(processes)[1].send_signal(signal.SIGSTOP)
        assert server.process.wait(END_SECONDS) == 2
    assert "hung" in server.output[-1]
    assert_gone(processes)


@pytest.mark.slow
def test_slices_on_two_nodes(models: Path) -> None:
    """Two nodes are two processes on this machine."""
    pytest.importorskip("vllm")
    nodes = ("--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "29622")
    prompts = PROMPTS[:2]
    expected = greedy_tokens(transformers_logits(models / "hf"), prompts, LENGTH)[0]
    command = serve_command(str(models / "hf"), "--headless", *nodes, "--node-rank", "1")
    with subprocess.Popen(command, cwd=ROOT) as second:
        try:
            with running_server(str(models / "hf"), *nodes) as server:
                workers = psutil.Process(second.pid).children(recursive=True)
                assert served_tokens(server.url, "hf", prompts, LENGTH) == expected
                assert server.stop() == 0
            second.terminate()
            second.wait(END_SECONDS)
        finally:
            second.kill()
    assert workers
    assert_gone(workers)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_folder_in_half_precision(models: Path, tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("vllm")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(models / "hf", dtype=getattr(torch, dtype))
    model.save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(models / "hf").save_pretrained(tmp_path / "half")
    with running_server(str(tmp_path / "half")) as server:
        tokens = served_tokens(server.url, "half", PROMPTS, 1)
    reference = transformers_logits(models / "hf")
    for prompt, (token,) in zip(PROMPTS, tokens, strict=True):
        scores = reference(torch.tensor([prompt]))[0, -1]
        assert float(scores.max() - scores[token]) < 0.1, "a token that is not among the likeliest"


def engines(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The replicas' own processes, in order."""
    named = {" ".join(process.cmdline()): process for process in processes}
    found = [named[name] for name in sorted(named) if "EngineCore_DP" in name]
    assert len(found) == 2
    return found


def running_bound(server: RunningServer) -> int:
    """Requests that may run at once, as the metrics say."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("mtnlg_running_requests_limit "))
    return int(float(line.split()[-1]))
