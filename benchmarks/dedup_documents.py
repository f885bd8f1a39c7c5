"""Documents with near duplicates of known similarity, for benchmarks/corpus_dedup.py.

Texts are sentences of ../shared/corpus, 240 words on average. Some have variants, made by replacing scattered words, by
replacing a passage or by cutting the end, as much as a Jaccard similarity drawn evenly from 0.5 to 1 asks for; a
variant is made of the original or, in a chain, of the variant before. What is true of a pair is computed here, by
sets of tuples of words, with nothing of what is being measured.
"""

import gzip
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
NGRAM = 5
_PROSE = ("books", "news", "abstracts", "papers", "speeches", "reviews", "wikipedia_demo", "web_c4_demo")
_MEAN_WORDS, _SPREAD = 240, 0.45
_VARIANTS = {1: 0.6, 2: 0.25, 3: 0.15}  # of an original that has any
_CHAINED = 0.3
_VARIANT_SHARE = 0.28
_DATASETS = {"best": 0.2, "middle": 0.3, "web": 0.5}  # in their order of priority


@dataclass(frozen=True)
class Generated:
    """`families` are lists of places in `texts`: an original and its variants."""

    texts: list[str]
    datasets: list[str]
    families: list[list[int]]


def generate(documents: int, seed: int = 1) -> Generated:
    """So many documents, shuffled; about 28 % are variants."""
    chance = random.Random(seed)
    sentences = _sentences()
    words = [word for sentence in sentences[:20000] for word in sentence.split()]
    families = []
    left = documents
    variants_left = int(documents * _VARIANT_SHARE)
    while left > 0:
        family = [_original(sentences, chance)]
        if variants_left > 0 and chance.random() < 0.4:
            wanted = chance.choices(list(_VARIANTS), list(_VARIANTS.values()))[0]
            for _ in range(min(wanted, variants_left, left - 1)):
                parent = family[-1] if chance.random() < _CHAINED else family[0]
                family.append(_variant(parent, 0.5 + chance.random() / 2, words, chance))
            variants_left -= len(family) - 1
        families.append(family)
        left -= len(family)
    places = list(range(documents))
    chance.shuffle(places)
    texts = [""] * documents
    numbered = []
    for family in families:
        numbers = [places.pop() for _ in family]
        for number, text in zip(numbers, family, strict=True):
            texts[number] = text
        numbered.append(numbers)
    datasets = chance.choices(list(_DATASETS), list(_DATASETS.values()), k=documents)
    return Generated(texts, datasets, numbered)


def dataset_names() -> list[str]:
    """The best first."""
    return list(_DATASETS)


def jaccard(a: str, b: str) -> float:
    """The Jaccard similarity of the two texts' sets of word 5-grams, in lower case, without punctuation."""
    first, second = _ngrams(a), _ngrams(b)
    return len(first & second) / len(first | second)


def family_pairs(generated: Generated) -> Iterator[tuple[int, int, float]]:
    """All pairs within families, with their similarity."""
    for family in generated.families:
        for a, b in itertools.combinations(family, 2):
            yield a, b, jaccard(generated.texts[a], generated.texts[b])


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[place : place + NGRAM]) for place in range(max(1, len(words) - NGRAM + 1))}


def _sentences() -> list[str]:
    found: dict[str, None] = {}
    for name in _PROSE:
        with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                text = re.sub(r"\s+", " ", json.loads(line)["text"])
                for sentence in re.split(r"(?<=[.!?]) ", text):
                    if 5 <= sentence.count(" ") < 40:
                        found[sentence] = None
    return list(found)


def _original(sentences: Sequence[str], chance: random.Random) -> str:
    wanted = _MEAN_WORDS * chance.lognormvariate(-(_SPREAD**2) / 2, _SPREAD) - 8  # a sentence overshoots by half
    chosen: list[str] = []
    words = 0
    while words < wanted or not chosen:
        chosen.append(chance.choice(sentences))
        words += chosen[-1].count(" ") + 1
    return " ".join(chosen)


def _variant(text: str, similarity: float, vocabulary: Sequence[str], chance: random.Random) -> str:
    words = text.split()
    size = max(1, len(words) - NGRAM + 1)
    gone = size * (1 - similarity) / (1 + similarity)  # n-grams that either side has alone
    way = chance.choice(("words", "passage", "end"))
    if way == "words":
        for place in chance.sample(range(len(words)), min(len(words), max(1, round(gone / NGRAM)))):
            words[place] = chance.choice(vocabulary)
    elif way == "passage":
        length = max(1, round(gone) - NGRAM + 1)
        begin = chance.randrange(max(1, len(words) - length))
        words[begin : begin + length] = chance.choices(vocabulary, k=length)
    else:
        words = words[: max(NGRAM, len(words) - round(size * (1 - similarity)))]
    return " ".join(words)


def write_shards(generated: Generated, folder: Path, rows: int = 6250) -> None:
    """folder/DATASET/NNNNN.parquet as the stage before leaves them; ids end in places in `texts`."""
    import pyarrow as pa

    from training.corpus.documents import DOCUMENTS
    from training.corpus.parquet import write_parquet

    for name in dataset_names():
        places = [place for place, dataset in enumerate(generated.datasets) if dataset == name]
        for number, begin in enumerate(range(0, len(places), rows)):
            part = places[begin : begin + rows]
            columns = {
                "id": [f"{name}/{place:07d}" for place in part],
                "source": ["made"] * len(part),
                "url": [None] * len(part),
                "date": [None] * len(part),
                "text": [generated.texts[place] for place in part],
            }
            write_parquet(pa.table(columns, schema=DOCUMENTS), folder / name / f"{number:05d}.parquet")
