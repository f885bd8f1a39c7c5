"""Cutting matches out of a document, with what is around them."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from training.corpus.decontaminate.config import DecontaminateConfig
from training.corpus.decontaminate.ngrams import Match

_SENTENCE_END = re.compile(r"[.!?]")


@dataclass(frozen=True)
class Cut:
    """Characters [start, end) of a document that go, and the matches for whose sake, by their place."""

    start: int
    end: int
    matches: Sequence[Match]


def find_cuts(text: str, matches: Sequence[Match], margin: int) -> list[Cut]:
    """What to cut for `matches` (sorted by start); cuts that touch are one.

    With a match go `margin` characters on each side, and what is between them and the end of a sentence, or of the
    document. filter_ngrams.py of Megatron-LM does so for the first match, then looks at the text behind the cut anew;
    here every match has its margin, so that no end of a long one stays.
    """
    sentence_ends = [found.start() for found in _SENTENCE_END.finditer(text)]
    cuts: list[tuple[int, int, list[Match]]] = []
    for match in matches:
        before = bisect_right(sentence_ends, match.start - margin)
        start = sentence_ends[before - 1] + 1 if before else 0
        after = bisect_left(sentence_ends, match.end + margin)
        end = sentence_ends[after] + 1 if after < len(sentence_ends) else len(text)
        if cuts and start <= cuts[-1][1]:
            first, last, together = cuts[-1]
            together.append(match)
            cuts[-1] = (first, max(last, end), together)
        else:
            cuts.append((start, end, [match]))
    return [Cut(*cut) for cut in cuts]


def pieces(text: str, cuts: Sequence[Cut], config: DecontaminateConfig) -> tuple[list[str], int]:
    """What is left of a document that was cut: pieces that are long enough, and the number of those that are not."""
    begins = [0, *(cut.end for cut in cuts)]
    ends = [*(cut.start for cut in cuts), len(text)]
    between = [text[begin:end].strip() for begin, end in zip(begins, ends, strict=True)]
    long = [piece for piece in between if len(piece) > config.min_piece]
    return long, sum(1 for piece in between if piece) - len(long)
