"""`mtnlg plan calibrate`: this machine's figures, measured, as a cluster file. The one module here that needs torch."""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from torch.multiprocessing.spawn import spawn

from foundation.console import error_console
from foundation.errors import UserError
from foundation.files import write_text
from training.model.attention import causal_attention
from training.planner.cluster import Cluster

_SIZES = (64, 128, 192, 256, 384, 512, 768, 1024, 2048)
_GPU_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_DTYPE = torch.bfloat16
_SMALL, _LARGE = 1 << 12, 1 << 23
# Bytes that `_elementwise` reads and writes an element, by the count of software.py: LayerNorm 4 and 10, GELU 4 and
# 6, the sum 6 and 6.
_ELEMENTWISE_BYTES = 36
_BACKWARD_OF_ATTENTION = 2.5
# Of one repetition of `_small`, forward and backward.
_OPERATIONS = 1000


def calibrate(out: Path, *, seconds: float, ranks: int) -> None:
    """Measure for about `seconds` and write `out`, a file of the schema `Cluster`.

    Of a CPU the figures are those of one core, and the file says how many cores its ranks share. Raises UserError when
    `out` is not a YAML file's name in a folder that exists.
    """
    if out.suffix != ".yaml" or not out.absolute().parent.is_dir():
        raise UserError(f"{out}: expected the name of a .yaml file in a folder that exists")
    on_gpu = torch.cuda.is_available()
    console = error_console()
    with _one_thread(not on_gpu):
        device = torch.device("cuda" if on_gpu else "cpu")
        console.print(f"measuring {_name(device)}, about {seconds:.0f} s ...")
        values = _measure(device, seconds, ranks)
    Cluster.model_validate(values)
    write_text(out, f"# Written by mtnlg plan calibrate.\n{yaml.safe_dump(values, sort_keys=False)}")
    console.print(f"written: {out}")


def _measure(device: torch.device, seconds: float, ranks: int) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    sizes = _GPU_SIZES if on_gpu else _SIZES
    # Shares of the time: matmuls, then the rest alike.
    each = seconds * 0.4 / len(sizes)
    rates = {size: 6.0 * size**3 / _timed(_linear(size, device), each, device) for size in sizes}
    peak = max(rates.values())
    elements, copied = (1 << 26, 1 << 28) if on_gpu else (1 << 20, 1 << 24)
    copy = 2.0 * copied * 2 / _timed(_copy(copied, device), seconds * 0.05, device)
    moved = _ELEMENTWISE_BYTES * elements / _timed(_elementwise(elements, device), seconds * 0.1, device)
    attention_flops, attend = _attention(device)
    attended = attention_flops / _timed(attend, seconds * 0.1, device)
    launch = _timed(_small(device), seconds * 0.05, device) / _OPERATIONS
    measured = f"measured on {_name(device)}"
    values: dict[str, Any] = {
        "gpus_per_node": torch.cuda.device_count() if on_gpu else ranks,
        "gpu_memory_gib": round(_memory_gib(device, ranks), 2),
        "nodes": 1,
        "device": {
            "name": _name(device),
            "peak_tflops": _sourced(peak / 1e12, f"{measured}: the fastest product in bf16, forward and backward"),
            "memory_gb_per_second": _sourced(copy / 1e9, f"{measured}: a copy, read and written"),
            "memory_share": _sourced(moved / copy, f"{measured}: LayerNorm, GELU and a sum, with backward"),
            "copy_share": _sourced(1.0, "by definition"),
            "matmul": {
                "curve": [[size, round(rates[size] / peak, 4)] for size in sizes],
                "source": f"{measured}: square products in bf16, forward and backward",
            },
            "fused_attention_share": _sourced(attended / peak, f"{measured}: causal attention, forward and backward"),
            "launch_microseconds": _sourced(launch * 1e6, f"{measured}: an operation on 16 elements, with backward"),
        },
    }
    if not on_gpu:
        values["device"]["cores"] = {
            "count": os.cpu_count() or 1,
            "speedup": _sourced(
                _speedup(seconds * 0.1), f"{measured}: products of size 1024 with all threads, and with one"
            ),
        }
    values["links"] = {"node": _link(device, seconds * 0.15, measured)}
    return values


def _timed(work: Callable[[], None], seconds: float, device: torch.device) -> float:
    """The median of a repetition's time over about so many seconds, after one to warm up.

    On one core its CPU time, which whatever else the machine does hardly changes.
    """
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    work()
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 3:
        _finish(device)
        started = clock()
        work()
        _finish(device)
        times.append(clock() - started)
    return statistics.median(times)


def _linear(size: int, device: torch.device) -> Callable[[], None]:
    inputs = torch.randn(size, size, device=device, dtype=_DTYPE, requires_grad=True)
    weight = torch.randn(size, size, device=device, dtype=_DTYPE, requires_grad=True)
    gradient = torch.randn(size, size, device=device, dtype=_DTYPE)

    def work() -> None:
        inputs.grad = weight.grad = None
        F.linear(inputs, weight).backward(gradient)  # type: ignore[no-untyped-call]

    return work


def _copy(elements: int, device: torch.device) -> Callable[[], None]:
    source = torch.ones(elements, device=device, dtype=_DTYPE)
    target = torch.empty_like(source)

    def work() -> None:
        target.copy_(source)

    return work


def _elementwise(elements: int, device: torch.device) -> Callable[[], None]:
    width = 1024
    inputs = torch.randn(elements // width, width, device=device, dtype=_DTYPE, requires_grad=True)
    scale = torch.ones(width, device=device, dtype=_DTYPE, requires_grad=True)
    gradient = torch.randn_like(inputs)

    def work() -> None:
        inputs.grad = scale.grad = None
        mapped = F.gelu(F.layer_norm(inputs, (width,), scale, None), approximate="tanh") + inputs
        mapped.backward(gradient)  # type: ignore[no-untyped-call]

    return work


def _attention(device: torch.device) -> tuple[float, Callable[[], None]]:
    """FLOPs, and the work, of causal attention over 8 heads of 64, forward and backward."""
    heads, length, size = (64, 2048, 128) if device.type == "cuda" else (8, 512, 64)
    tensors = [torch.randn(1, heads, length, size, device=device, dtype=_DTYPE, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(1, heads, length, size, device=device, dtype=_DTYPE)

    def work() -> None:
        for tensor in tensors:
            tensor.grad = None
        causal_attention(*tensors).backward(gradient)  # type: ignore[no-untyped-call]

    return (1 + _BACKWARD_OF_ATTENTION) * 2.0 * heads * length**2 * size, work


def _small(device: torch.device) -> Callable[[], None]:
    inputs = torch.ones(16, device=device, requires_grad=True)

    def work() -> None:
        value = inputs
        for _ in range(_OPERATIONS // 2):
            value = value + 1.0
        value.sum().backward()  # type: ignore[no-untyped-call]

    return work


def _speedup(seconds: float) -> float:
    """What all cores do of what one does: one process on each, by CPU time, which counts what they share alone."""
    alone = _timed(_linear(1024, torch.device("cpu")), seconds / 3, torch.device("cpu"))
    count = os.cpu_count() or 1
    together = _spawned(_product_worker, count, (seconds / 3,))
    return max(1.0, count * alone / statistics.fmean(together))


def _product_worker(rank: int, queue: Any, seconds: float) -> None:
    torch.set_num_threads(1)
    queue.put((rank, _timed(_linear(1024, torch.device("cpu")), seconds, torch.device("cpu"))))


def _spawned(work: Callable[..., None], count: int, arguments: tuple[Any, ...]) -> list[Any]:
    """What `count` processes put into a queue, by rank."""
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    spawn(work, args=(queue, *arguments), nprocs=count)  # type: ignore[no-untyped-call]
    return [value for _, value in sorted(queue.get() for _ in range(count))]


def _link(device: torch.device, seconds: float, measured: str) -> dict[str, Any]:
    """Two processes' all-reduce, small and large; on one GPU there is nobody to talk to, and a copy stands for it."""
    on_gpu = device.type == "cuda"
    if on_gpu and torch.cuda.device_count() < 2:
        note = "one device: never used"
        return {"gb_per_second": _sourced(1.0, note), "microseconds": _sourced(1.0, note)}
    backend = "nccl" if on_gpu else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        small, large = _spawned(_reduce_worker, 2, (str(Path(folder) / "store"), backend, seconds / 2))[0]
    source = f"{measured}: all-reduce over two processes with {backend}"
    # Of two ranks a ring moves the size once over each link, in two steps.
    return {
        "gb_per_second": _sourced(_LARGE / max(large - small, 1e-9) / 1e9, source),
        "microseconds": _sourced(small / 2 * 1e6, source),
    }


def _reduce_worker(rank: int, queue: Any, store: str, backend: str, seconds: float) -> None:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    found = []
    for size, usual in ((_SMALL, 2e-4), (_LARGE, 2e-2)):
        tensor = torch.ones(size // 2, device=device, dtype=_DTYPE)
        times = []
        # Both must agree how often, which a clock would not make them.
        for _ in range(max(10, round(seconds / usual))):
            dist.barrier()
            _finish(device)
            started = time.perf_counter()
            dist.all_reduce(tensor)
            _finish(device)
            times.append(time.perf_counter() - started)
        # The undisturbed ones: two processes wait for each other, and so for whatever else the machine does.
        found.append(statistics.quantiles(times, n=10)[0])
    queue.put((rank, tuple(found)))
    dist.destroy_process_group()


@contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _sourced(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gib(device: torch.device, ranks: int) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(0).total_memory / 2**30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 / ranks
