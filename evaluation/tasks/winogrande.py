"""WinoGrande's partial evaluation: two prefixes, one a filled-in option, score the same suffix.

In lm-eval's terms the choices are contexts, `doc_to_text` names the right one and `doc_to_target` is what
follows each (Trinh and Le 2018, "A Simple Method for Commonsense Reasoning", section 3).
"""

from collections.abc import Mapping

_BLANK = "_"


def gold_option(row: Mapping[str, str]) -> int:
    """0 where option1 fills the blank, 1 where option2 does."""
    return {"1": 0, "2": 1}[row["answer"]]


def text_after_blank(row: Mapping[str, str]) -> str:
    """The continuation that both prefixes are scored on."""
    return row["sentence"].partition(_BLANK)[2].strip()


def filled_prefixes(row: Mapping[str, str]) -> list[str]:
    """The sentence up to the blank, with either option in it."""
    before = row["sentence"].partition(_BLANK)[0]
    return [before + row["option1"], before + row["option2"]]
