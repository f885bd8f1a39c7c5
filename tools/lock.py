"""Write requirements.lock: every package of a CPU install, pinned. Run it as `make lock`.

pip resolves pyproject.toml's extras in a dry run. The packages below are then left out, because
the lock is installed without dependency resolution and they break the CPU build of torch.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

EXTRAS = "corpus,corpus-ray,train,evaluate,serve,tracing,engine-cpu,dev"
LOCK = Path("requirements.lock")
LEFT_OUT = {
    "mtnlg": "the project itself",
    "torchaudio": "a GPU build, which the engine does not need for text",
    "torchcodec": "a GPU build, which the engine does not need for text",
    "torchvision": "a GPU build; transformers imports it wherever it is found, and fails beside torch for CPUs",
    "triton": "a GPU compiler; a GPU build of torch brings the one that fits it",
}
HEADER = """\
# Every package of a CPU install, for Python 3.11. Written by `make lock`; do not edit.
# Install torch first, with what its build for this machine needs, then the rest as it stands:
#   pip install "$(grep ^torch== requirements.lock)" && pip install --no-deps -r requirements.lock
"""


def main() -> None:
    """Resolve, leave out, write."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    result = subprocess.run([*command, f".[{EXTRAS}]"], stdout=subprocess.PIPE, text=True, check=True)
    packages = [entry["metadata"] for entry in json.loads(result.stdout)["install"]]
    pins = {
        re.sub(r"[-_.]+", "-", package["name"]).lower(): package["version"].partition("+")[0] for package in packages
    }
    lines = [f"{name}=={version}" for name, version in sorted(pins.items()) if name not in LEFT_OUT]
    comments = [f"# left out: {name} ({reason})" for name, reason in LEFT_OUT.items() if name in pins]
    LOCK.write_text(HEADER + "\n".join([*comments, *lines]) + "\n", encoding="utf-8")
    print(f"{LOCK}: {len(lines)} packages")


if __name__ == "__main__":
    main()
