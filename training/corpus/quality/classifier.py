"""A trained classifier: a folder with fastText's model, the curve that it was judged by, and a manifest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.manifest import Manifest, check_manifest, read_manifest
from training.corpus.quality.examples import words_line

FORMAT = "mtnlg-quality-classifier"
MODEL, CURVE = "classifier.bin", "precision_recall.png"
GOOD, OTHER = "__label__good", "__label__other"
_BATCH = 256


def fasttext() -> Any:
    """The library. Raises UserError when it is not installed."""
    try:
        import fasttext as module
    except ImportError:
        raise UserError("fastText is not installed; install mtnlg[corpus]") from None
    return module


def checked_manifest(folder: Path) -> Manifest:
    """The folder's manifest, its files held against it. Raises UserError when it is no classifier or was changed."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.format != FORMAT:
        raise UserError(f"no classifier in {folder}; make one with: mtnlg corpus train-classifier")
    problems = check_manifest(folder, manifest)
    if problems:
        raise UserError("; ".join(problems))
    return manifest


class Classifier:
    """Scores texts; opened once in a process."""

    def __init__(self, model: Any, max_words: int) -> None:
        self._model = model
        self._max_words = max_words

    @classmethod
    def load(cls, folder: Path) -> "Classifier":
        """From a folder that training made. Raises UserError when there is none."""
        manifest = read_manifest(folder)
        if manifest is None or manifest.format != FORMAT:
            raise UserError(f"no classifier in {folder}")
        return cls(fasttext().load_model(str(folder / MODEL)), int(manifest.about["settings"]["max_words"]))

    def scores(self, texts: Sequence[str]) -> list[float]:
        """The probability of being good text, 0 to 1, for each."""
        return self.score_lines([words_line(text, self._max_words) for text in texts])

    def score_lines(self, lines: Sequence[str]) -> list[float]:
        """The same, for lines of words as training has them."""
        scores: list[float] = []
        for start in range(0, len(lines), _BATCH):
            labels, probabilities = self._model.predict(list(lines[start : start + _BATCH]), k=2)
            for names, values in zip(labels, probabilities, strict=True):
                # A text without any known word gets no label: nothing is known of it.
                found = dict(zip(names, values, strict=True))
                scores.append(min(1.0, max(0.0, float(found.get(GOOD, 0.5 if not found else 0.0)))))
        return scores
