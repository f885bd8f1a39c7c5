"""The rules by which a cleaned text is dropped: the paper's, in the order in which they are asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from training.corpus.language import LanguageIdentifier

if TYPE_CHECKING:
    from training.corpus.clean import CleanConfig

# The released clean-up's general cleaning (Megatron-LM, tools/openwebtext/cleanup_fix_dataset.py): runs of spaces
# and line breaks after a word become a space; those after punctuation stay.
_GENERAL = re.compile(r"  +|\b\n+ |\b\n+")
_TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class Verdict:
    """The rule that a text breaks, and what there is to say."""

    rule: str
    detail: str


class Rule(Protocol):
    """Says what is wrong with a text, or None."""

    def __call__(self, text: str, /) -> Verdict | None:
        """Look at one cleaned text."""
        ...


@dataclass(frozen=True)
class Javascript:
    """A short text that speaks of JavaScript is what a page says to those who have none."""

    below_characters: int

    def __call__(self, text: str) -> Verdict | None:
        """Look at one cleaned text."""
        if len(text) < self.below_characters and "javascript" in text.lower():
            return Verdict("javascript", f"{len(text)} characters")
        return None


@dataclass(frozen=True)
class Short:
    """A text of fewer characters than asked for."""

    min_characters: int

    def __call__(self, text: str) -> Verdict | None:
        """Look at one cleaned text."""
        return Verdict("too short", f"{len(text)} characters") if len(text) < self.min_characters else None


class ForeignLanguage:
    """A text that is not mainly in one of the languages."""

    def __init__(self, languages: Sequence[str], min_share: float) -> None:
        self._languages = frozenset(languages)
        self._min_share = min_share
        self._identify = LanguageIdentifier()

    def __call__(self, text: str) -> Verdict | None:
        """Look at one cleaned text."""
        found = self._identify(text)
        if found.code in self._languages and found.share >= self._min_share:
            return None
        return Verdict("language", f"{found.code} {found.share:.0%}")


def open_rules(config: "CleanConfig") -> list[Rule]:
    """The rules that the configuration asks for; the first that a text breaks is the one that is counted."""
    rules: list[Rule] = [Javascript(config.min_characters_javascript), Short(config.min_characters)]
    if config.languages:
        rules.append(ForeignLanguage(config.languages, config.min_language_share))
    return rules


def general_cleaning(text: str) -> str:
    """Unwrap lines and close up runs of spaces, as the authors' released code does."""
    return _GENERAL.sub(" ", text)


def tidy(text: str) -> str:
    """Without spaces at the ends of lines, more than one empty line in a row, and blanks around it all."""
    return _BLANK_LINES.sub("\n\n", _TRAILING.sub("", text)).strip()
