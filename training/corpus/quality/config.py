"""Settings of the quality stage and of the classifier's training."""

from pathlib import Path

from pydantic import Field, model_validator

from foundation.config import StrictModel

_FEWEST_STEPS = 20_000  # documents seen in training, with repetition


class ClassifierConfig(StrictModel):
    """How the classifier is trained: fastText on words and pairs of words.

    A document stands for its first `max_words`, so that its length says nothing. As many negatives as positives are
    taken, at most `max_examples` of each, of which `held_out_percent` are kept for the test.
    """

    word_ngrams: int = Field(default=2, ge=1)
    dimension: int = Field(default=32, ge=1)
    buckets: int = Field(default=500_000, ge=1)  # rows for the hashed n-grams; the file takes 4 bytes x dimension a row
    min_count: int = Field(default=2, ge=1)
    epochs: int | None = Field(default=None, ge=1)  # none: 5, and up to 100 where documents are few
    learning_rate: float = Field(default=0.5, gt=0)
    max_words: int = Field(default=1000, ge=1)
    max_examples: int = Field(default=400_000, ge=10)
    held_out_percent: float = Field(default=10.0, gt=0, lt=100)

    def epochs_over(self, documents: int) -> int:
        """How often training goes through so many documents: a few hundred seen five times leave every score at 0.5."""
        return self.epochs or min(100, max(5, -(-_FEWEST_STEPS // max(1, documents))))


class QualityConfig(StrictModel):
    """What is taken for good text, and how much of the rest is kept.

    `positives` are names of the corpus's datasets, or files and folders (.parquet, .jsonl, .txt, ...): a classifier is
    trained on them against documents of the other datasets. Or `classifier` is a folder that
    `mtnlg corpus train-classifier` made. With neither nothing is scored and all goes on. Datasets named as positives
    are not scored. A document of score s is kept when a Pareto draw of shape `alpha` exceeds 1 - s, which has the
    probability (2 - s)^-alpha.
    """

    positives: tuple[str, ...] = ()
    classifier: Path | None = None
    alpha: float = Field(default=3.0, gt=0)
    training: ClassifierConfig = ClassifierConfig()

    @model_validator(mode="after")
    def _one_origin(self) -> "QualityConfig":
        if self.positives and self.classifier is not None:
            raise ValueError("give positives or a trained classifier, not both")
        return self
