"""Training speed and memory on a CPU, beside Hugging Face's GPT-2 in the same run.

Every variant is a process of its own; they take turns, a few steps at a time, so that whatever else the machine
does falls on all of them alike. Speeds are medians over all steps. Part of the engine's gain is that it tells the C
library's allocator to keep what is freed; "kept memory" is Hugging Face's GPT-2 given the same, which takes no part in
the bars.

    python -m benchmarks.train_speed            # about 15 minutes; writes benchmarks/results/train_speed.json
    python -m benchmarks.train_speed --quick    # a try; writes benchmarks/results/train_speed.quick.json
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from rich.progress import track

from benchmarks.common import Bar, write_result
from benchmarks.training_steps import Shape, Step, bare_step, engine_step, hugging_face_step
from training.allocator import keep_freed_memory
from training.model.config import ModelConfig

_THREADS = 2
_CPU = torch.device("cpu")
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(_THREADS)}


def _keeping_memory(make: Callable[[Shape], Step]) -> Callable[[Shape], Step]:
    """The same step with the allocator told after the first one what the engine tells it."""

    def made(shape: Shape) -> Step:
        step = make(shape)
        step(_tokens(shape))
        keep_freed_memory()
        return step

    return made


_VARIANTS: dict[str, Callable[[Shape], Step]] = {
    "engine": partial(engine_step, compiled=False),
    "engine, compiled": partial(engine_step, compiled=True),
    "bare loop": _keeping_memory(partial(bare_step, device=_CPU, compiled=False)),
    "bare loop, compiled": _keeping_memory(partial(bare_step, device=_CPU, compiled=True)),
    "HF autocast": partial(hugging_face_step, device=_CPU, autocast=True, compiled=False),
    "HF autocast, compiled": partial(hugging_face_step, device=_CPU, autocast=True, compiled=True),
    "HF bf16": partial(hugging_face_step, device=_CPU, autocast=False, compiled=False),
    "HF bf16, compiled": partial(hugging_face_step, device=_CPU, autocast=False, compiled=True),
    "kept memory: HF bf16": _keeping_memory(partial(hugging_face_step, device=_CPU, autocast=False, compiled=False)),
    "kept memory: HF bf16, compiled": _keeping_memory(
        partial(hugging_face_step, device=_CPU, autocast=False, compiled=True)
    ),
}


@dataclass(frozen=True)
class Measurement:
    """One variant at one shape: a step's median wall and CPU seconds, its least, and the process's peak memory."""

    wall: float
    cpu: float
    least_wall: float
    peak_bytes: int


def main() -> None:
    """Measure both shapes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of one step, into another file")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each variant; more on a busy machine")
    arguments = parser.parse_args()
    quick = arguments.quick
    os.environ.update(_ENVIRONMENT)
    torch.set_num_threads(_THREADS)
    measurements: list[dict[str, Any]] = []
    bars: list[Bar] = []
    for shape in _shapes():
        peaks = [_matmul_peak()]
        variants = _measure(shape, rounds=2 if quick else arguments.rounds, steps=1 if quick else 2)
        peaks.append(_matmul_peak())
        measurements.append(_report(shape, variants, max(peaks)))
        bars += _bars(shape, variants)
    write_result(
        "train_speed.quick" if quick else "train_speed",
        {"threads": _THREADS, "environment_variables": _ENVIRONMENT, "shapes": measurements},
        bars,
    )


def _shapes() -> list[Shape]:
    def shape(name: str, vocabulary: int, hidden: int, layers: int, batch: int) -> Shape:
        model = ModelConfig(
            num_layers=layers,
            hidden_size=hidden,
            num_attention_heads=hidden // 64,
            sequence_length=512,
            vocab_size=vocabulary,
        )
        return Shape(name, model, batch)

    return [shape("10 M", 8192, 256, 10, 4), shape("30 M", 50304, 384, 6, 2)]


def _measure(shape: Shape, rounds: int, steps: int) -> dict[str, Measurement]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    try:
        for name in track(_VARIANTS, f"{shape.name}: starting and warming up"):
            pipes[name], theirs = context.Pipe()
            process = context.Process(target=_serve, args=(name, shape, theirs), daemon=True)
            processes.append(process)
            process.start()
            theirs.close()
            # One after the other, so that no compilation disturbs another's.
            pipes[name].recv()
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in pipes}
        for _ in track(range(rounds), f"{shape.name}: measuring"):
            for name, pipe in pipes.items():
                pipe.send(steps)
                times[name] += pipe.recv()
        return {name: _summary(times[name], _ask_peak(pipe)) for name, pipe in pipes.items()}
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(name: str, shape: Shape, pipe: Connection) -> None:
    """A variant's process: warm up, then as many steps as asked at a time; 0 asks for the peak memory."""
    torch.set_num_threads(_THREADS)
    # DeepSpeed prints what it does.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    torch.manual_seed(0)
    step: Step = _VARIANTS[name](shape)
    tokens = _tokens(shape)
    for _ in range(3):
        step(tokens)
    pipe.send(None)
    while True:
        steps = pipe.recv()
        if steps == 0:
            # The kernel counts a process's largest resident set in KiB.
            pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        else:
            pipe.send([_timed(step, tokens) for _ in range(steps)])


def _tokens(shape: Shape) -> torch.Tensor:
    return torch.randint(0, shape.model.vocab_size, (shape.batch_size, shape.model.sequence_length + 1))


def _timed(step: Step, tokens: torch.Tensor) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    step(tokens)
    return time.perf_counter() - wall, time.process_time() - cpu


def _ask_peak(pipe: Connection) -> int:
    pipe.send(0)
    return int(pipe.recv())


def _summary(times: list[tuple[float, float]], peak_bytes: int) -> Measurement:
    walls, cpus = zip(*times, strict=True)
    return Measurement(statistics.median(walls), statistics.median(cpus), min(walls), peak_bytes)


def _matmul_peak(size: int = 2048, repeats: int = 20) -> float:
    """The best that a square bf16 matmul did, FLOP/s."""
    left, right = torch.randn(2, size, size).bfloat16()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - started)
    return 2.0 * size**3 / min(seconds)


def _report(shape: Shape, variants: dict[str, Measurement], peak: float) -> dict[str, Any]:
    best = variants[_fastest("HF", variants)]
    return {
        "shape": shape.name,
        "model": shape.model.model_dump(),
        "batch_size": shape.batch_size,
        "matmul_peak_tflops": peak / 1e12,
        "best_hugging_face": _fastest("HF", variants),
        "ratio_to_best_hugging_face_with_kept_memory": (
            variants[_fastest("kept memory", variants)].wall / variants[_fastest("engine", variants)].wall
        ),
        "variants": {
            name: {
                "tokens_per_second": shape.tokens / measured.wall,
                "tokens_per_cpu_second": shape.tokens / measured.cpu,
                "tokens_per_second_of_the_fastest_step": shape.tokens / measured.least_wall,
                "ratio_to_best_hugging_face": best.wall / measured.wall,
                "cpu_ratio_to_best_hugging_face": best.cpu / measured.cpu,
                "peak_mib": measured.peak_bytes / 2**20,
                "model_flops_utilisation": shape.flops / measured.wall / peak,
                # CPU seconds of all threads: what one thread's share of the machine would have reached undisturbed.
                "model_flops_utilisation_by_cpu_time": shape.flops * _THREADS / measured.cpu / peak,
            }
            for name, measured in variants.items()
        },
    }


def _bars(shape: Shape, variants: dict[str, Measurement]) -> list[Bar]:
    ours, theirs, bare = (variants[_fastest(kind, variants)] for kind in ("engine", "HF", "bare"))
    mib = 2**20
    return [
        Bar(f"{shape.name}: tokens/s against the best Hugging Face variant", theirs.wall / ours.wall, "x", 1.3),
        Bar(f"{shape.name}: peak memory", ours.peak_bytes / mib, "MiB", at_most=theirs.peak_bytes / mib),
        Bar(f"{shape.name}: layout (1, 1, 1) through DeepSpeed against a bare loop", bare.wall / ours.wall, "x", 0.95),
    ]


def _fastest(kind: str, variants: dict[str, Measurement]) -> str:
    return min((name for name in variants if name.startswith(kind)), key=lambda name: variants[name].wall)


if __name__ == "__main__":
    main()
