"""Training speed and memory of the published GPT sizes on one GPU, beside Hugging Face's GPT-2 in the same run.

It runs where there are only torch and transformers: without DeepSpeed a plain loop drives this project's layers,
with the same bf16 weights, fp32 masters and fp32 gradients, and the results say so.

    python -m benchmarks.train_gpu                       # writes benchmarks/results/train_gpu.json
    python -m benchmarks.train_gpu --device cpu --tiny   # the same path with a tiny model; nothing is written
"""

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.common import Bar, write_result
from benchmarks.training_steps import Shape, Step, bare_step, engine_step, hugging_face_step
from training.model.config import ModelConfig

# bf16 without sparsity: H100 SXM and H200 (NVIDIA H100 and H200 datasheets).
_PEAK_FLOPS = 989e12
_SEQUENCE = 2048
# Layers, hidden size, heads, and the batch to begin with: halved until it fits.
_SIZES = {
    "125m": (12, 768, 12, 32),
    "350m": (24, 1024, 16, 16),
    "1.3b": (24, 2048, 16, 8),
    "2.7b": (32, 2560, 32, 8),
}
_OURS, _HF = "mtnlg", "Hugging Face"
_BAR_SIZE, _BAR_UTILISATION = "1.3b", 0.50


@dataclass(frozen=True)
class Measurement:
    """One variant of one size; memory as torch's allocator counts it."""

    size: str
    variant: str
    batch_size: int
    tokens_per_second: float
    model_flops_utilisation: float
    peak_gib: float


def main() -> None:
    """Measure every size and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, to try the path; nothing is written")
    parser.add_argument("--steps", type=int, default=10, help="measured steps, after five to warm up")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("train_gpu needs a GPU and torch sees none; --device cpu --tiny tries the path without one")
    if arguments.device == "cpu" and not arguments.tiny:
        sys.exit("the published sizes need a GPU; --device cpu goes with --tiny")
    shapes = [_tiny()] if arguments.tiny else [_published(name) for name in _SIZES]
    measurements = []
    for shape in shapes:
        for variant in (_OURS, _HF):
            print(f"{shape.name}, {variant} ...", flush=True)
            measurements.append(_largest_batch(shape, variant, arguments.device, arguments.steps))
            print(f"  {measurements[-1]}", flush=True)
    if arguments.tiny:
        print("tried; nothing written")
        return
    found = {"device": torch.cuda.get_device_name(), "peak_tflops": _PEAK_FLOPS / 1e12, "driven_by": _driven_by("cuda")}
    reached = next(m for m in measurements if m is not None and (m.size, m.variant) == (_BAR_SIZE, _OURS))
    name = f"{_BAR_SIZE}: model FLOPs utilisation"
    bars = [Bar(name, reached.model_flops_utilisation, "share", at_least=_BAR_UTILISATION)]
    write_result("train_gpu", {**found, "sizes": [asdict(m) for m in measurements if m is not None]}, bars)


def _published(name: str) -> Shape:
    layers, hidden, heads, batch = _SIZES[name]
    return Shape(name, _model(layers, hidden, heads, _SEQUENCE, 50257), batch)


def _tiny() -> Shape:
    return Shape("tiny", _model(2, 64, 2, 32, 301), 2)


def _model(layers: int, hidden: int, heads: int, sequence: int, vocabulary: int) -> ModelConfig:
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        sequence_length=sequence,
        vocab_size=vocabulary,
    )


def _largest_batch(shape: Shape, variant: str, device: str, steps: int) -> Measurement | None:
    """The variant at the largest batch that fits, in a process of its own; None when a batch of one does not."""
    context = multiprocessing.get_context("spawn")
    while shape.batch_size:
        ours, theirs = context.Pipe()
        process = context.Process(target=_measure_into, args=(theirs, shape, variant, device, steps))
        process.start()
        theirs.close()
        try:
            found: Measurement | None = ours.recv()
        except EOFError:
            sys.exit(f"{shape.name}, {variant}: the measuring process failed; its error is above")
        finally:
            process.join()
        if found is not None:
            return found
        print(f"  out of memory with a batch of {shape.batch_size}", flush=True)
        shape = replace(shape, batch_size=shape.batch_size // 2)
    return None


def _measure_into(pipe: Connection, shape: Shape, variant: str, device: str, steps: int) -> None:
    # DeepSpeed prints what it does.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        pipe.send(_measure(shape, variant, torch.device(device), steps))
    except torch.OutOfMemoryError:
        pipe.send(None)


def _measure(shape: Shape, variant: str, device: torch.device, steps: int) -> Measurement:
    step = _step(shape, variant, device)
    tokens = torch.randint(0, shape.model.vocab_size, (shape.batch_size, _length(shape)), device=device)
    for _ in range(5):
        step(tokens)
    seconds = []
    for _ in range(steps):
        _finish(device)
        started = time.perf_counter()
        step(tokens)
        _finish(device)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    return Measurement(
        size=shape.name,
        variant=variant,
        batch_size=shape.batch_size,
        tokens_per_second=shape.tokens / median,
        model_flops_utilisation=shape.flops / median / _PEAK_FLOPS,
        peak_gib=peak / 2**30,
    )


def _step(shape: Shape, variant: str, device: torch.device) -> Step:
    if variant == _HF:
        return hugging_face_step(shape, device, autocast=False, compiled=True)
    if _has_deepspeed():
        if device.type == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        return engine_step(shape, compiled=True)
    return bare_step(shape, device, compiled=True)


def _driven_by(device: str) -> dict[str, Any]:
    driver = "this project's engine (DeepSpeed)" if _has_deepspeed() else "a plain loop, for DeepSpeed is absent"
    return {_OURS: driver, _HF: "GPT2LMHeadModel in bf16, SDPA, torch.compile, fused AdamW", "device": device}


def _has_deepspeed() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


def _length(shape: Shape) -> int:
    # One more than a sample's inputs: its targets are its tokens from the second on.
    return shape.model.sequence_length + 1


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
