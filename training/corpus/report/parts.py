"""The page's parts about single stages: quality, duplicates, contamination, the blend."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.corpus.report.contamination import contamination_part
from training.corpus.report.duplicates import duplicates_part
from training.corpus.report.folder import StageFolder
from training.corpus.report.quality import quality_part
from training.corpus.report.tokens import blend_part


def parts(
    out: Path, stages: Sequence[StageFolder], datasets: Sequence[str], configuration: Mapping[str, Any]
) -> dict[str, Any]:
    """By the names that the template knows; None for a stage that is not finished or has nothing to show."""
    by_name = {stage.name: stage for stage in stages}
    quality, duplicates, contamination = (by_name.get(name) for name in ("quality", "deduplicate", "decontaminate"))
    return {
        "quality": quality_part(quality, datasets, configuration) if quality else None,
        "duplicates": duplicates_part(duplicates) if duplicates else None,
        "contamination": contamination_part(contamination, datasets, configuration) if contamination else None,
        "blend": blend_part(out),
    }
