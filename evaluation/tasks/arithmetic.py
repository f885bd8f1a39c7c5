"""Arithmetic whose operator hides behind an odd symbol, to be inferred from the examples in the prompt.

After Figure 4 of the MT-NLG announcement, which shows `11 # 2 = ?` with the answer 5.5, and `11 $^% 2 = ?` with 22.
It gives no score, so the numbers' ranges and the symbols for addition and subtraction are this project's.

Questions are all pairs of a range (`_RANGES`) in an order drawn from a seed: the first are asked, those after them are
examples. The order is that of SHA-256 over "seed operation left right", which any language and version reproduces.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator

from evaluation.rows import Row

SEED = 530
ASKED, EXAMPLES = 200, 100
SYMBOLS = {"division": "#", "multiplication": "$^%", "addition": "@&", "subtraction": "~!"}

# As in the figure, one operand of division and multiplication has one digit.
_RANGES = {
    "division": (range(10, 100), range(2, 10)),
    "multiplication": (range(2, 41), range(2, 10)),
    "addition": (range(2, 100), range(2, 100)),
    "subtraction": (range(2, 100), range(2, 100)),
}


def arithmetic_rows(operation: str, split: str, seed: int = SEED) -> list[Row]:
    """Rows of left, symbol, right, answer (the exact result as it is written, such as "8.75").

    `split` is test or train; no question is in both.
    """
    drawn = sorted(_questions(operation), key=lambda row: _place(seed, operation, row))
    return drawn[:ASKED] if split == "test" else drawn[ASKED : ASKED + EXAMPLES]


def _questions(operation: str) -> Iterator[Row]:
    result = _RESULTS[operation]
    for left, right in itertools.product(*_RANGES[operation]):
        answer = result(left, right)
        if answer is not None:
            yield {"left": left, "symbol": SYMBOLS[operation], "right": right, "answer": answer}


def _quotient(left: int, right: int) -> str | None:
    """Exact in at most two decimals, as in the figure; else None."""
    hundredths, rest = divmod(100 * left, right)
    if rest:
        return None
    whole, decimals = divmod(hundredths, 100)
    return f"{whole}.{decimals:02}".rstrip("0").rstrip(".") if decimals else str(whole)


def _difference(left: int, right: int) -> str | None:
    return str(left - right) if left > right else None


_RESULTS: dict[str, Callable[[int, int], str | None]] = {
    "division": _quotient,
    "multiplication": lambda left, right: str(left * right),
    "addition": lambda left, right: str(left + right),
    "subtraction": _difference,
}


def _place(seed: int, operation: str, row: Row) -> bytes:
    return hashlib.sha256(f"{seed} {operation} {row['left']} {row['right']}".encode()).digest()
