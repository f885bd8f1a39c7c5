"""Stage 2: text out of raw HTML, a page at a time in a process that a bad page cannot take along."""

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field

from foundation.config import StrictModel
from foundation.errors import UserError
from training.corpus.page_process import PageProcess
from training.corpus.stage import Outcome, Shard, ShardStage
from training.corpus.tables import Sieve

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

_FUNCTIONS = "training.corpus.extractors"


class ExtractConfig(StrictModel):
    """How text is found in a page, and what a page may cost.

    `focus` and `fast` are trafilatura's: when in doubt less text or more, and without its comparison of extractors.
    `stop_words` names jusText's list. A page that is larger, computes longer or needs more memory is dropped.
    """

    extractor: Literal["trafilatura", "resiliparse", "justext"] = "trafilatura"
    focus: Literal["balanced", "precision", "recall"] = "balanced"
    fast: bool = False
    stop_words: str = "English"
    page_seconds: float = Field(default=30.0, gt=0)  # of processor time
    page_megabytes: float = Field(default=20.0, gt=0)
    memory_gigabytes: float = Field(default=4.0, ge=0.5)  # of the process's address space

    def options(self) -> dict[str, Any]:
        """What the extractor's function in extractors.py is called with."""
        if self.extractor == "trafilatura":
            return {"focus": self.focus, "fast": self.fast}
        return {"language": self.stop_words} if self.extractor == "justext" else {}


class Extract(ShardStage):
    """Documents that came as text go on as they are; pages become text, or are dropped by a rule that says why.

    Rules: too large, time limit, crash, error, empty. Each names the page in the table of what was dropped.
    """

    name = "extract"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: ExtractConfig = config.extract

    def identity(self) -> dict[str, Any]:
        """The settings, and the library with its version. Raises UserError when it is not installed."""
        extractor = self._config.extractor
        try:
            found = version(extractor)
        except PackageNotFoundError:
            raise UserError(f"{extractor} is not installed; install mtnlg[corpus]") from None
        return {**self._config.model_dump(mode="json"), "library": f"{extractor} {found}"}

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """Starts no process before there is a page."""
        return PageExtractor(self._config)


class PageExtractor:
    """Extracts shard by shard; its process lives from the first page on, until it is closed or its owner ends."""

    def __init__(self, config: ExtractConfig) -> None:
        self._limit = config.page_megabytes
        self._pages = PageProcess(
            f"{_FUNCTIONS}:{config.extractor}",
            config.options(),
            seconds=config.page_seconds,
            memory_gigabytes=config.memory_gigabytes,
        )

    def __call__(self, shard: Shard, table: pa.Table) -> Outcome:
        """`table` has the schema RAW."""
        sieve = Sieve()
        for batch in table.to_batches(max_chunksize=256):
            for document in batch.to_pylist():
                self._extract(document, sieve)
        return sieve.outcome()

    def close(self) -> None:
        """End the process."""
        self._pages.close()

    def _extract(self, document: Mapping[str, Any], sieve: Sieve) -> None:
        html = document["html"]
        if html is None:
            text = document["text"] or ""
            sieve.counts["came as text"] += 1
        else:
            sieve.counts["pages"] += 1
            if len(html) > self._limit * 1e6:
                detail = f"{len(html) / 1e6:.1f} MB instead of at most {self._limit:g}"
                return sieve.drop(document, "too large", _named(document, detail), _beginning(html))
            result = self._pages.extract(html)
            if result.rule is not None:
                return sieve.drop(document, result.rule, _named(document, result.detail), _beginning(html))
            text = result.text
        if not text.strip():
            return sieve.drop(document, "empty", _named(document), None if html is None else _beginning(html))
        return sieve.keep(document, text)


def _named(document: Mapping[str, Any], detail: str = "") -> str:
    """The page by its address, or by where it was read from, and what happened."""
    return ": ".join(filter(None, (document["url"] or document["source"], detail)))


def _beginning(html: bytes) -> str:
    return html[:4000].decode("utf-8", "replace")
