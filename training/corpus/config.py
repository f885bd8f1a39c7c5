"""The corpus configuration: what `mtnlg corpus build FILE.yaml` reads. Each stage owns its own section."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from foundation.config import StrictModel
from training.corpus.blend import BlendConfig
from training.corpus.clean import CleanConfig
from training.corpus.decontaminate.config import DecontaminateConfig
from training.corpus.dedup.config import DeduplicateConfig
from training.corpus.extract import ExtractConfig
from training.corpus.quality.config import QualityConfig
from training.corpus.tokenise import TokeniseConfig

Skippable = Literal["clean", "quality", "deduplicate", "decontaminate"]


class DatasetConfig(StrictModel):
    """One dataset: where its documents are, and how to read them."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="begins its documents' ids")
    paths: tuple[str, ...] = Field(
        min_length=1, description="files, folders or patterns, here or in object storage (s3://bucket/*.warc.gz)"
    )
    format: Literal["auto", "warc", "jsonl", "parquet", "text", "html"] = Field(
        default="auto", description="auto: by the file's suffix"
    )
    text_field: str = Field(default="text", description="of JSON Lines and Parquet; meta.text is text within meta")
    html_field: str = Field(default="html", description="read where a record has no text")
    url_field: str = "url"
    date_field: str = "date"
    id_field: str | None = Field(default=None, description="ends the documents' ids; none: their place in the file")
    skip: tuple[Skippable, ...] = Field(default=(), description="stages that leave this dataset as it is")
    weight: float | None = Field(
        default=None, gt=0, description="its share of the blend, relative to the others'; none: its number of tokens"
    )
    tokens: float | None = Field(default=None, gt=0, description="its size in billions, known beforehand, for plans")


class CorpusConfig(StrictModel):
    """A corpus. The datasets' order is their order of quality: of duplicates, the first one's stays."""

    out: Path = Field(description="folder to write; a build in it goes on where it ended")
    seed: int = 1234
    shard_megabytes: int = Field(default=64, ge=1, description="of text or HTML in one file of a stage, about")
    datasets: tuple[DatasetConfig, ...] = Field(min_length=1)
    extract: ExtractConfig = Field(default_factory=ExtractConfig)
    clean: CleanConfig = Field(default_factory=CleanConfig)
    quality: QualityConfig = Field(default_factory=QualityConfig)
    deduplicate: DeduplicateConfig = Field(default_factory=DeduplicateConfig)
    decontaminate: DecontaminateConfig = Field(default_factory=DecontaminateConfig)
    tokenise: TokeniseConfig = Field(default_factory=TokeniseConfig)
    blend: BlendConfig = Field(default_factory=BlendConfig)

    @model_validator(mode="after")
    def _names_differ(self) -> "CorpusConfig":
        names = [dataset.name for dataset in self.datasets]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two datasets are called {name}; put their paths into one, or rename one")
        reserved = {"dropped", "side", "records", "scratch", "tokenizer"} & set(names)
        if reserved:
            raise ValueError(f"no dataset may be called {', '.join(sorted(reserved))}: the build has folders so named")
        return self
