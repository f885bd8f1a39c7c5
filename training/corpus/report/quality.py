"""The quality classifier on the page: how well it does, and the scores of what it kept and dropped."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foundation.manifest import read_manifest
from training.corpus.parquet import read_parquet
from training.corpus.quality.classifier import CURVE
from training.corpus.report.folder import StageFolder

_TENTHS = 10
# A histogram is as good from some of a thousand shards.
_SHARDS = 100


@dataclass(frozen=True)
class Tenth:
    """Documents with scores from `low` on, a tenth wide."""

    low: float
    kept: int
    dropped: int


@dataclass(frozen=True)
class QualityPart:
    """`about` are names and values; `curve` is a picture as a data URI, or empty."""

    tenths: tuple[Tenth, ...]
    most: int
    about: tuple[tuple[str, str], ...]
    curve: str
    alpha: float | None


def quality_part(stage: StageFolder, datasets: Sequence[str], configuration: Mapping[str, Any]) -> QualityPart | None:
    """None where nothing was scored."""
    kept, dropped = _histograms([path for name in datasets for path in stage.side("scores", name)][:_SHARDS])
    if not (kept + dropped).any():
        return None
    settings = configuration.get("quality") or {}
    given = settings.get("classifier")
    classifier = Path(given) if given else stage.path / "scratch" / "classifier"
    tenths = [Tenth(n / _TENTHS, int(kept[n]), int(dropped[n])) for n in range(_TENTHS)]
    return QualityPart(
        tuple(tenths),
        max(tenth.kept + tenth.dropped for tenth in tenths),
        tuple(_about(classifier, settings)),
        _picture(classifier / CURVE),
        settings.get("alpha"),
    )


def _histograms(scores: Sequence[Path]) -> tuple[Any, Any]:
    """Documents kept and dropped by tenths of the score."""
    counts = np.zeros((2, _TENTHS), dtype=np.int64)
    for path in scores:
        table = read_parquet(path, ["score", "kept"])
        tenths = np.minimum(_TENTHS - 1, (table["score"].to_numpy() * _TENTHS).astype(np.int64))
        kept = table["kept"].to_numpy().astype(bool)
        counts += [np.bincount(tenths[chosen], minlength=_TENTHS) for chosen in (kept, ~kept)]
    return counts[0], counts[1]


def _about(classifier: Path, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    positives = settings.get("positives") or ()
    found = [("good text", ", ".join(map(str, positives)))] if positives else [("classifier", str(classifier))]
    manifest = read_manifest(classifier)
    if manifest is not None:
        held_out = manifest.about["held_out"]
        found += [
            ("examples of each kind", f"{manifest.about['examples']:,}"),
            ("held-out documents", f"{held_out['documents']:,}"),
            ("accuracy on them", f"{held_out['accuracy']:.3f}"),
            ("average precision", f"{held_out['average_precision']:.3f}"),
        ]
    return found


def _picture(path: Path) -> str:
    if not path.is_file():
        return ""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
