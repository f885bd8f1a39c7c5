"""How fast, and in how much memory, a checkpoint is converted; beside `cp` on the same disk and DeepSpeed's converters.

Every conversion is a process of its own, timed after it has imported what it needs; they take turns. `cp` copies the
files that the conversion reads and flushes them as the conversion flushes its own. All read from the page cache, which
is the harder comparison: a disk that is slow to read hides what a conversion does besides copying.

    python -m benchmarks.convert            # some minutes, 25 GB of disk; writes benchmarks/results/convert.json
    python -m benchmarks.convert --quick    # a try; writes benchmarks/results/convert.quick.json
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from rich.progress import track

from benchmarks.common import Bar, write_result
from benchmarks.conversion_paths import (
    Seconds,
    by_universal_checkpoint,
    by_zero_to_fp32,
    convert_checkpoint,
    copy_files,
    write_checkpoint,
    write_deepspeed_checkpoint,
)
from conversion.convert import Options
from conversion.safetensors_file import Entry, read_header
from training.model.config import ModelConfig
from training.model.tensors import parameter_count
from training.parallel.layout import Layout

_MB = 10**6
_LAYOUT = Layout(tensor_parallel_size=4, pipeline_parallel_size=4)
_ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
_WEIGHTS, _ALL = ("weights-*",), ("weights-*", "optimizer-*")
_OURS = {
    "to HF": (Options("hf"), _WEIGHTS),
    "to vLLM, tensor parallel 2": (Options("vllm", tensor_parallel_size=2), _WEIGHTS),
    "to training layout (2, 2, 2)": (Options("training", 2, 2, 2), _ALL),
}
_OURS_LIKE_PEER = "to HF in float32"
_PEERS = ("zero_to_fp32 and save_pretrained", "ds_to_universal and save_pretrained")
_MOST_MEMORY, _MOST_GROWTH = 512 * _MB, 50 * _MB


@dataclass(frozen=True)
class Way:
    """What one process does: from the folder `source` to a new one, having imported `modules`."""

    source: Path
    run: Callable[[Path, Path], Seconds]
    modules: tuple[str, ...] = ()


@dataclass
class Measured:
    """One run. Memory is above what the process had when it had imported everything."""

    wall: float
    cpu: float
    parts: Seconds
    peak_bytes: int
    anonymous_bytes: int = 0
    temporary: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, Entry] = field(default_factory=dict)
    output_bytes: int = 0


def main() -> None:
    """Make the checkpoints, measure every way, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, into another file")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way; more on a busy machine")
    parser.add_argument("--folder", type=Path, help="where to work: the disk to measure; by default a temporary folder")
    arguments = parser.parse_args()
    os.environ.update(_ENVIRONMENT)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="mtnlg-convert-") as folder:
        root = Path(folder)
        small, large = (_model(layers, quick=arguments.quick) for layers in (4, 28))
        runs = {
            name: write_checkpoint(root / name, size, _LAYOUT) for name, size in (("small", small), ("large", large))
        }
        _apart(partial(write_deepspeed_checkpoint, root / "deepspeed", large))
        ways = _ways(runs["large"], root / "deepspeed", large)
        measured = _take_turns(ways, root / "work", arguments.rounds)
        ours = {name: Way(runs["small"], ways[name].run) for name in (*_OURS, _OURS_LIKE_PEER)}
        measured_small = _take_turns(ours, root / "work", 1)
        result = {
            "disk": _disk(root),
            "page_cache": "what is read is in memory",
            "environment_variables": _ENVIRONMENT,
            "checkpoint": _about_checkpoint(runs["large"], large),
            "smaller_checkpoint": _about_checkpoint(runs["small"], small),
            "throughput": "bytes of the tensors written, over the median wall time",
            "memory": "VmHWM, which counts mapped pages of files, above VmRSS when everything was imported; "
            "anonymous: RssAnon, sampled",
            "temporary_files": "the most there was at one time besides the files of the output, by name; the journal, "
            "text from which an interrupted conversion goes on, is no copy of data and not in the bar",
            "peer": "DeepSpeed's ZeRO-1 checkpoint of the same parameters from one process, with no slices or stages "
            "to put together and no checksums; both peers write float32 from the masters, as ours does beside them. "
            "Memory of ds_to_universal's worker processes is not counted.",
            "ways": {name: _report(found) for name, found in measured.items()},
            "ways_from_the_smaller_checkpoint": {name: _report(found) for name, found in measured_small.items()},
        }
    bars = _bars(measured, measured_small)
    write_result("convert.quick" if arguments.quick else "convert", result, bars)


def _model(layers: int, *, quick: bool) -> ModelConfig:
    """Only the depth differs, so that the largest tensor is the same and 28 layers make 4 times the bytes of 4."""
    width = 128 if quick else 1024
    return ModelConfig(
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 16,
        sequence_length=width,
        vocab_size=5000 if quick else 50257,
    )


def _ways(checkpoint: Path, deepspeed: Path, model: ModelConfig) -> dict[str, Way]:
    ways = {}
    for name, (options, patterns) in _OURS.items():
        ways[f"cp {name}"] = Way(checkpoint, partial(copy_files, patterns=patterns))
        ways[name] = Way(checkpoint, partial(convert_checkpoint, options=options))
    ways[_OURS_LIKE_PEER] = Way(checkpoint, partial(convert_checkpoint, options=Options("hf", dtype="float32")))
    modules = (
        "deepspeed.utils.zero_to_fp32",
        "deepspeed.checkpoint.ds_to_universal",
        "transformers.models.gpt2.modeling_gpt2",
    )
    for name, run in zip(_PEERS, (by_zero_to_fp32, by_universal_checkpoint), strict=True):
        ways[name] = Way(deepspeed, partial(run, model=model), modules)
    return ways


def _take_turns(ways: dict[str, Way], work: Path, rounds: int) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in track(range(rounds), "measuring"):
        for name, way in ways.items():
            work.mkdir()
            _warm(way.source)
            found[name].append(_measure(way, work))
            rmtree(work)
    same = (found[name][0].tensors for name in (_OURS_LIKE_PEER, *_PEERS) if name in found)
    if len({str(sorted((key, held.shape, held.dtype) for key, held in tensors.items())) for tensors in same}) != 1:
        raise ValueError("the peers did not write the tensors that this project's conversion writes")
    return found


def _warm(source: Path) -> None:
    """Let the disk finish what went before, and read the source into memory."""
    os.sync()
    for path in source.rglob("*"):
        if path.is_file():
            with path.open("rb") as handle:
                while handle.read(1 << 24):
                    pass


def _measure(way: Way, work: Path) -> Measured:
    out, temporary = work / "out", work / "tmp"
    temporary.mkdir()
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(way, out, temporary, theirs))
    process.start()
    theirs.close()
    try:
        pid = pipe.recv()
        anonymous = [_status(pid, "RssAnon")]
        samples = []
        pipe.send(None)
        while not pipe.poll(0.02):
            anonymous.append(_status(pid, "RssAnon"))
            samples.append(_sizes(work))
        measured: Measured | Exception = pipe.recv()
    finally:
        process.join(timeout=60)
        process.kill()
        process.join()
    if isinstance(measured, Exception):
        raise measured
    measured.anonymous_bytes = max(anonymous) - anonymous[0]
    kept = _sizes(out).keys()
    left = [{name: size for name, size in sample.items() if name not in kept} for sample in samples]
    measured.temporary = max(left, key=lambda sample: sum(sample.values()), default={})
    for file in out.rglob("*.safetensors"):
        entries = read_header(file)[1]
        measured.tensors |= entries
        measured.output_bytes += sum(entry.size for entry in entries.values())
    return measured


def _serve(way: Way, out: Path, temporary: Path, pipe: Connection) -> None:
    """A way's process: import everything, then, when told, run and measure it; what goes wrong is sent instead."""
    os.environ["TMPDIR"] = str(temporary)
    # DeepSpeed starts workers: by forking, as it does in a program of its own.
    multiprocessing.set_start_method("fork", force=True)
    # The peers print what they do.
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    torch.set_num_threads(int(_ENVIRONMENT["OMP_NUM_THREADS"]))
    for module in way.modules:
        importlib.import_module(module)
    pipe.send(os.getpid())
    pipe.recv()
    try:
        pipe.send(_timed(way, out))
    except Exception as error:
        pipe.send(error)


def _timed(way: Way, out: Path) -> Measured:
    # Makes VmHWM start again from what is resident now (proc_pid_clear_refs(5)).
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    resident, wall, cpu = _status(os.getpid(), "VmRSS"), time.perf_counter(), sum(os.times()[:4])
    parts = way.run(way.source, out)
    wall, cpu = time.perf_counter() - wall, sum(os.times()[:4]) - cpu
    return Measured(wall, cpu, parts, _status(os.getpid(), "VmHWM") - resident)


def _status(pid: int, key: str) -> int:
    """Bytes that the kernel reports of a process's memory, 0 once it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 0)


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file below `folder` by name, whatever its folder is called before it is finished.

    A file that is still called `.NAME.PID.tmp`, and then renamed, counts as NAME (`foundation.files.write_bytes`).
    """
    sizes: Counter[str] = Counter()
    for base, _, names in os.walk(folder):
        for name in names:
            # It may be gone by now.
            with contextlib.suppress(FileNotFoundError):
                sizes[re.sub(r"^\.(.+)\.\d+\.tmp$", r"\1", name)] += (Path(base) / name).stat().st_size
    return sizes


def _apart(action: Callable[[], None]) -> None:
    """Run in a process of its own, which gives all its memory back."""
    process = multiprocessing.get_context("spawn").Process(target=_quietly, args=(action,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{action} failed")


def _quietly(action: Callable[[], None]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    action()


def _disk(folder: Path) -> dict[str, str]:
    """The device and the file system that hold `folder`."""
    best = ("", "", "")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        mounted, (kind, device) = before.split()[4], after.split()[:2]
        if folder.resolve().is_relative_to(mounted) and len(mounted) >= len(best[0]):
            best = (mounted, kind, device)
    return {"device": best[2], "file_system": best[1]}


def _about_checkpoint(folder: Path, model: ModelConfig) -> dict[str, Any]:
    sizes = {pattern: [path.stat().st_size for path in folder.glob(pattern)] for pattern in _ALL}
    weights, optimizer = (sizes[pattern] for pattern in _ALL)
    return {
        "model": model.model_dump(mode="json"),
        "parameters": parameter_count(model),
        "layout": str(_LAYOUT),
        "precision": "bf16",
        "files": len(weights) + len(optimizer),
        "weights_mb": sum(weights) / _MB,
        "optimizer_mb": sum(optimizer) / _MB,
    }


def _report(found: Sequence[Measured]) -> dict[str, Any]:
    wall = _wall(found)
    return {
        "wall_seconds": wall,
        "wall_seconds_of_each_turn": [run.wall for run in found],
        "cpu_seconds": statistics.median(run.cpu for run in found),
        "written_mb": found[0].output_bytes / _MB,
        "mb_per_second": found[0].output_bytes / _MB / wall,
        "largest_tensor_mb": _largest(found) / _MB,
        "peak_mb": _peak(found) / _MB,
        "anonymous_peak_mb": max(run.anonymous_bytes for run in found) / _MB,
        "temporary_files_mb": {
            name: size / _MB for name, size in max((run.temporary for run in found), key=_total).items()
        },
        **({"parts_seconds": _median_parts(found)} if found[0].parts else {}),
    }


def _median_parts(found: Sequence[Measured]) -> Seconds:
    return {part: statistics.median(run.parts[part] for run in found) for part in found[0].parts}


def _bars(large: dict[str, list[Measured]], small: dict[str, list[Measured]]) -> list[Bar]:
    bars = []
    for name in _OURS:
        ratio = _speed(large[name]) / _speed(large[f"cp {name}"])
        bars.append(Bar(f"{name}: throughput against cp", ratio, "x", at_least=0.7))
    for name in (*_OURS, _OURS_LIKE_PEER):
        most = max(2 * _largest(large[name]), _MOST_MEMORY) / _MB
        bars.append(Bar(f"{name}: peak memory", _peak(large[name]) / _MB, "MB", at_most=most))
        growth = (_peak(large[name]) - _peak(small[name])) / _MB
        bars.append(
            Bar(f"{name}: peak memory's growth with 4 times the bytes", growth, "MB", at_most=_MOST_GROWTH / _MB)
        )
        temporary = max(_total(_copies(run.temporary)) for run in large[name]) / _MB
        bars.append(Bar(f"{name}: temporary files", temporary, "MB", at_most=0.0))
    for name in _PEERS:
        ratio = _wall(large[name]) / _wall(large[_OURS_LIKE_PEER])
        bars.append(Bar(f"{_OURS_LIKE_PEER}: speed against {name}", ratio, "x", at_least=5.0))
    return bars


def _wall(found: Sequence[Measured]) -> float:
    return statistics.median(run.wall for run in found)


def _speed(found: Sequence[Measured]) -> float:
    return found[0].output_bytes / _wall(found)


def _peak(found: Sequence[Measured]) -> int:
    return max(run.peak_bytes for run in found)


def _largest(found: Sequence[Measured]) -> int:
    return max(entry.size for entry in found[0].tensors.values())


def _copies(temporary: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in temporary.items() if name != "journal.jsonl"}


def _total(sizes: dict[str, int]) -> int:
    return sum(sizes.values())


if __name__ == "__main__":
    main()
