"""What counts as contamination, and how much around it is cut."""

from pathlib import Path

from pydantic import Field, model_validator

from foundation.config import StrictModel


class DecontaminateConfig(StrictModel):
    """The defaults are MT-NLG's (Smith et al. 2022, section 3; Megatron-LM's tools/openwebtext/filter_ngrams.py)."""

    texts: Path | None = Field(
        default=None, description="the tasks' texts, a file of mtnlg evaluate texts; none: nothing is looked for"
    )
    min_words: int = Field(default=8, ge=1, description="a shorter text of a task is not looked for")
    max_words: int = Field(default=13, ge=1, description="longer ones are looked for by all their n-grams of this size")
    common_documents: int = Field(default=10, ge=1, description="an n-gram in so many documents is common, and is left")
    margin: int = Field(default=200, ge=0, description="characters cut on each side, on to the sentence's end")
    min_piece: int = Field(
        default=200, ge=0, description="of a cut document, pieces with no more characters are dropped"
    )
    max_cuts: int = Field(default=10, ge=1, description="a document with more cuts is dropped")

    @model_validator(mode="after")
    def _sizes_in_order(self) -> "DecontaminateConfig":
        if self.min_words > self.max_words:
            raise ValueError(f"min_words {self.min_words} is more than max_words {self.max_words}")
        return self
