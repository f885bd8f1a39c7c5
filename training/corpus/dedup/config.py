"""Settings of fuzzy deduplication."""

from pydantic import Field

from foundation.config import StrictModel


class DeduplicateConfig(StrictModel):
    """Two documents are joined where their sets of word n-grams have a Jaccard similarity of `threshold` or more.

    The paper's 20 bands of 13 rows let a pair of the similarity s be found with probability 1 - (1 - s^13)^20: 0.68 at
    0.8, 0.92 at 0.85 and 0.997 at 0.9. The same 260 hashes in a second arrangement of bands, across those of the
    first, find 0.89 at 0.8 and 0.99 at 0.85 and cost little, since what is found is compared exactly anyhow;
    `arrangements: 1` is the paper's. Of joined documents that of the dataset named first in `datasets` is kept.

    `comparisons` bounds the work on documents that all share a band, such as thousands made from one template: as many
    comparisons as that for each of them. Up to so many documents in a band all pairs are compared.
    """

    ngram: int = Field(default=5, ge=1, le=50)
    bands: int = Field(default=20, ge=1, le=1000)
    rows: int = Field(default=13, ge=1, le=1000)
    arrangements: int = Field(default=2, ge=1, le=8)
    threshold: float = Field(default=0.8, gt=0, le=1)
    comparisons: int = Field(default=256, ge=1)
    examples: int = Field(default=12, ge=0)  # pairs whose texts the report shows
