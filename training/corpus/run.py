"""What `mtnlg corpus build` does: configuration, engine, and the build or its dry run."""

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from foundation.config import load_config
from foundation.console import error_console
from foundation.errors import UserError
from training.corpus.config import CorpusConfig
from training.corpus.engine import DaftEngine
from training.corpus.lock import LOCK
from training.corpus.pipeline import build, states
from training.corpus.progress import BuildDisplay
from training.corpus.readers.files import list_files
from training.corpus.report.page import write_report
from training.corpus.stages import STAGES


def load_corpus(path: Path, overrides: Sequence[str] = ()) -> CorpusConfig:
    """The corpus configuration in `path`. Raises UserError naming the file, the key and the nearest valid key."""
    return load_config(CorpusConfig, path, overrides)


def build_corpus(
    path: Path,
    overrides: Sequence[str],
    *,
    stage: str | None = None,
    dry_run: bool = False,
    ray_address: str | None = None,
    workers: int | None = None,
) -> None:
    """Build the corpus that `path` describes, or `stage` of it alone; or say what a build would do."""
    if stage is not None and stage not in STAGES:
        raise UserError(f"no stage is called {stage}; there are: {', '.join(STAGES)}")
    config = load_corpus(path, overrides)
    display = BuildDisplay(error_console())
    if dry_run:
        _dry_run(config, [stage] if stage else list(STAGES), display)
        return
    engine = DaftEngine(workers=workers, ray_address=ray_address, lock=(config.out / LOCK).absolute())
    build(config, engine, display, only=stage)
    if stage is None:
        display.note(f"{write_report(config.out)} shows what every stage kept and dropped")


def _dry_run(config: CorpusConfig, names: Sequence[str], display: BuildDisplay) -> None:
    for dataset in config.datasets:
        files = list_files(dataset)
        kinds = ", ".join(sorted({file.format for file in files}))
        count = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        size = sum(file.size for file in files) / 1e6
        display.note(f"dataset {dataset.name}: {count} ({kinds}), {size:,.1f} MB")
    for name, state in states(config, names):
        display.note(f"{name}: {state}")
    yaml.safe_dump(config.model_dump(mode="json"), sys.stdout, sort_keys=False)
