"""HANS as the question that the MT-NLG announcement shows.

    The banker forgot that the judge advised the professors.
    Question: The judge advised the professors. True or False?

The dataset's sentences are tokenised ("the professors ."), the announcement's are not (its Figure 4), so
punctuation is joined to its word. "Answer:" on a line of its own is GPT-3's form for ANLI; the announcement
shows only what precedes it.
"""

from collections.abc import Mapping


def question(row: Mapping[str, str]) -> str:
    """The prompt; " True" or " False" follows."""
    return f"{_joined(row['premise'])}\nQuestion: {_joined(row['hypothesis'])} True or False?\nAnswer:"


def _joined(sentence: str) -> str:
    return sentence.replace(" ,", ",").replace(" .", ".")
