"""What a word is: a run of letters, digits, marks and underscores, in lower case."""

import unicodedata
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Beyond these two planes every character counts as a letter.
_CODE_POINTS = 0x20000
_FIRST_SURROGATE, _LAST_SURROGATE = 0xD800, 0xDFFF


@cache
def letters() -> NDArray[np.int32]:
    """For each code point 0 where it separates words, else that of its lower case."""
    table = np.zeros(_CODE_POINTS, np.int32)
    for code in range(_CODE_POINTS):
        character = chr(code)
        surrogate = _FIRST_SURROGATE <= code <= _LAST_SURROGATE
        if not surrogate and (character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"):
            table[code] = ord(character.lower()[0])
    return table


def text_buffers(texts: pa.ChunkedArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of a column of texts, end to end, and where each begins [texts + 1]; without a copy."""
    column = texts.combine_chunks().cast(pa.large_string())
    if len(column) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    return np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8), starts
