"""A corpus folder as `mtnlg corpus build` leaves it: which stages are finished, and what their counts say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import read_json
from foundation.manifest import MANIFEST

STAGES = ("sources", "extract", "clean", "quality", "deduplicate", "decontaminate")


@dataclass(frozen=True)
class StageFolder:
    """A finished stage that leaves documents."""

    name: str
    path: Path

    def shards(self, dataset: str, *, dropped: bool = False) -> list[Path]:
        """The Parquet files of a dataset, sorted: of what goes on, or of what was dropped."""
        return sorted((self.path / "dropped" / dataset if dropped else self.path / dataset).glob("*.parquet"))

    def side(self, table: str, dataset: str) -> list[Path]:
        """The Parquet files of a table of the stage's own."""
        return sorted((self.path / "side" / table / dataset).glob("*.parquet"))

    def read(self, name: str) -> Mapping[str, Any]:
        """A JSON file of the stage, such as `summary.json`; empty where there is none."""
        path = self.path / name
        found: Mapping[str, Any] = read_json(path) if path.is_file() else {}
        return found

    def counts(self, dataset: str) -> Mapping[str, Any]:
        """A dataset's counts: documents_in, documents_out, bytes_out, dropped, and the stage's own under `counts`."""
        found: Mapping[str, Any] = self.read("summary.json").get("datasets", {}).get(dataset, {})
        return found


def finished_stages(out: Path) -> list[StageFolder]:
    """Those that leave documents, in their order. Raises UserError where there is none: this is no corpus."""
    found = [StageFolder(name, out / name) for name in STAGES if (out / name / MANIFEST).is_file()]
    if not found:
        raise UserError(f"{out} holds no finished stage of a corpus; mtnlg corpus build FILE.yaml makes one")
    return found
