r"""Words of many texts at once, as 64-bit hashes, in numpy.

A word is what `re` finds as `\w+`, lower-cased code point by code point. A polynomial over code points modulo 2^64
hashes it; prefix sums give the hash of every word, and of every n-gram of words, in a few passes over an array
(Karp and Rabin 1987). Equal words have equal hashes; whoever acts on an equal hash compares the words themselves.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_WORD = re.compile(r"\w+")
# Odd, so that they have inverses modulo 2^64.
_CHARACTER_BASE = 0x9E3779B97F4A7C15
_WORD_BASE = 0xD6E8FEB86659FD93
_BLOCK_SPANS = 1 << 14
# From here on Unicode has ideographs, marks and room for private use.
_CASELESS_FROM = 0x20000
_ENDIAN = "le" if sys.byteorder == "little" else "be"


def canonical(text: str) -> str:
    """The words of a text, lower-cased, with one space between them: what two n-grams are compared by."""
    return " ".join("".join(map(_lower, word)) for word in _WORD.findall(text))


@dataclass(frozen=True)
class Words:
    """The words of texts laid end to end: hash, first character and the one after the last, and which text's."""

    hashes: Hashes
    starts: Places
    ends: Places
    text_of: Places
    text_starts: Places

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        """Find and hash the words; `starts` and `ends` count from the beginning of the first text."""
        # One character between texts, which is in no word, so that none joins words of two of them.
        lengths = np.fromiter((len(text) + 1 for text in texts), dtype=np.int64, count=len(texts))
        text_starts = np.cumsum(lengths) - lengths
        joined = "\n".join(texts) + "\n"
        codes = np.frombuffer(joined.encode(f"utf-32-{_ENDIAN}", "surrogatepass"), dtype=np.uint32)
        is_word, lower = _tables()
        inside = np.zeros(len(codes) + 1, dtype=np.bool_)
        inside[1:] = is_word[codes]
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        starts, ends = edges[0::2], edges[1::2]
        in_text = np.diff(np.searchsorted(starts, text_starts), append=len(starts))
        text_of = np.repeat(np.arange(len(texts)), in_text)
        hashes = _span_hashes(lambda first, end: lower[codes[first:end]], starts, ends, _CHARACTER_BASE)
        return cls(hashes, starts, ends, text_of, text_starts)

    def ngrams(self, size: int) -> tuple[Hashes, Places]:
        """The hashes of all n-grams of `size` words that lie in one text, and the number of each one's first word."""
        count = max(0, len(self.hashes) - size + 1)
        firsts = np.arange(count)
        hashes = _span_hashes(lambda first, end: self.hashes[first:end], firsts, firsts + size, _WORD_BASE + 2 * size)
        whole = self.text_of[:count] == self.text_of[size - 1 :]
        return hashes[whole], firsts[whole]


def _span_hashes(values: Callable[[int, int], Hashes], starts: Places, ends: Places, base: int) -> Hashes:
    """Hash of the values [start, end) of each span: the sum of value x base^place, made independent of the start.

    `values` gives those from the first to the second place; starts and ends rise. Done in blocks that stay in caches.
    """
    hashes = np.empty(len(starts), dtype=np.uint64)
    for block in range(0, len(starts), _BLOCK_SPANS):
        these = slice(block, block + _BLOCK_SPANS)
        first, end = int(starts[these][0]), int(ends[these][-1])
        powers, inverses = _powers(base, _table_size(end - first))
        sums = np.zeros(end - first + 1, dtype=np.uint64)
        np.cumsum(values(first, end) * powers[: end - first], out=sums[1:])
        begins = starts[these] - first
        hashes[these] = _mixed((sums[ends[these] - first] - sums[begins]) * inverses[begins])
    return hashes


def _mixed(hashes: Hashes) -> Hashes:
    """Every bit of a hash made to depend on all: the finaliser of MurmurHash3."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _table_size(least: int) -> int:
    return 1 << max(16, least.bit_length())


@cache
def _powers(base: int, count: int) -> tuple[Hashes, Hashes]:
    """base^0, base^1, ... and their inverses, modulo 2^64."""
    powers = np.full(count, base, dtype=np.uint64)
    inverses = np.full(count, pow(base, -1, 2**64), dtype=np.uint64)
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)


@cache
def _tables() -> tuple[npt.NDArray[np.bool_], Hashes]:
    r"""Of each code point: whether it is in `\w`, and its lower case plus one."""
    codes = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    is_word = np.char.isalnum(codes.view("U1"))
    is_word[ord("_")] = True
    lower = codes.astype(np.uint64)
    lower[:_CASELESS_FROM] = [ord(_lower(chr(code))) for code in range(_CASELESS_FROM)]
    return is_word, lower + np.uint64(1)


def _lower(character: str) -> str:
    """The lower case where it is one character, which all are but the dotted capital I's; else itself."""
    lower = character.lower()
    return lower if len(lower) == 1 else character
