"""Stage 3: texts repaired by ftfy, then the paper's filters: JavaScript notices, length, language."""

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import Field

from foundation.config import StrictModel
from foundation.errors import UserError
from training.corpus.filters import general_cleaning, open_rules, tidy
from training.corpus.language import check_codes
from training.corpus.stage import Outcome, Shard, ShardStage
from training.corpus.tables import Sieve

if TYPE_CHECKING:
    from training.corpus.config import CorpusConfig

# ASCII without control characters and without the beginning of an entity.
_NOTHING_TO_FIX = re.compile(r"[ -%'-~\t\n]*")


class TextFixer:
    """ftfy.fix_text, the slowest step, without the lines that it would leave alone: several times as fast."""

    def __init__(self) -> None:
        from ftfy import TextFixerConfig, fix_text

        self._fix: Callable[..., str] = fix_text
        self._config: Any = TextFixerConfig(explain=False)

    def __call__(self, text: str) -> str:
        """What ftfy.fix_text makes of the text. It works by lines too."""
        if _NOTHING_TO_FIX.fullmatch(text):
            return text
        config, fixed = self._config, []
        for line in re.findall(r"[^\n]*\n|[^\n]+", text):
            if "<" in line:
                # Markup from here on, as ftfy takes it: entities stay as they are.
                config = config._replace(unescape_html=False)
            fixed.append(line if _NOTHING_TO_FIX.fullmatch(line) else self._fix(line, config))
        return "".join(fixed)


class CleanConfig(StrictModel):
    """What is repaired, and which texts are dropped. The defaults are the paper's.

    `languages` are ISO 639-1 codes, as CLD2 names them; none keeps every language. `general_cleaning` unwraps lines and
    closes up runs of spaces as the authors' released code can; it ruins code, tables and verse.
    """

    fix_text: bool = True
    general_cleaning: bool = False
    min_characters: int = Field(default=512, ge=0)
    min_characters_javascript: int = Field(default=256, ge=0)  # of a text that has the word
    languages: tuple[str, ...] = ("en",)
    min_language_share: float = Field(default=0.5, ge=0, le=1)


class Clean(ShardStage):
    """Repairs every text and drops those that break a rule: javascript, too short, language."""

    name = "clean"

    def __init__(self, config: "CorpusConfig") -> None:
        self._config: CleanConfig = config.clean

    def identity(self) -> dict[str, Any]:
        """The settings, and the versions of the libraries.

        Raises UserError when one is not installed, and for a language that there is none of.
        """
        try:
            libraries = [f"{name} {version(name)}" for name in ("ftfy", "pycld2")]
        except PackageNotFoundError as error:
            raise UserError(f"{error.name} is not installed; install mtnlg[corpus]") from None
        check_codes(self._config.languages)
        return {**self._config.model_dump(mode="json"), "libraries": libraries}

    def open(self, scratch: Path) -> Callable[[Shard, pa.Table], Outcome]:
        """Loads the libraries."""
        return Cleaner(self._config)


class Cleaner:
    """Cleans shard by shard."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config
        self._fix = TextFixer()
        self._rules = open_rules(config)

    def __call__(self, shard: Shard, table: pa.Table) -> Outcome:
        """`table` has the schema DOCUMENTS. Counts, besides the rules', the texts that were repaired and languages."""
        sieve = Sieve()
        for batch in table.to_batches(max_chunksize=256):
            for document in batch.to_pylist():
                text = self.repair(document["text"])
                sieve.counts["repaired"] += text != document["text"]
                verdict = next(filter(None, (rule(text) for rule in self._rules)), None)
                if verdict is None:
                    sieve.keep(document, text)
                    continue
                sieve.drop(document, verdict.rule, verdict.detail, text)
                if verdict.rule == "language":
                    sieve.counts[f"language: {verdict.detail.split()[0]}"] += 1
        return sieve.outcome()

    def repair(self, text: str) -> str:
        """The text as it goes on, if it does."""
        if self._config.fix_text:
            text = self._fix(text)
        if self._config.general_cleaning:
            text = general_cleaning(text)
        return tidy(text)
