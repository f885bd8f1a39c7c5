"""A build of the made stages in a process of its own, which a test may kill: CONFIG.yaml [RAY_ADDRESS]."""

import sys
from pathlib import Path
from unittest import mock

from foundation.console import error_console
from tests.training.corpus.made_stages import STAGES
from training.corpus.engine import DaftEngine
from training.corpus.lock import LOCK
from training.corpus.pipeline import build
from training.corpus.progress import BuildDisplay
from training.corpus.run import load_corpus


def main() -> None:
    """Build by two workers."""
    config = load_corpus(Path(sys.argv[1]))
    engine = DaftEngine(workers=2, ray_address=next(iter(sys.argv[2:]), None), lock=config.out / LOCK)
    with (
        mock.patch("training.corpus.stages.STAGES", STAGES),
        mock.patch("training.corpus.pipeline.STAGES", STAGES),
    ):
        build(config, engine, BuildDisplay(error_console()))


if __name__ == "__main__":
    main()
