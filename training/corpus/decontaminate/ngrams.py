"""The tasks' n-grams, and where they are in documents."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from foundation.errors import UserError
from foundation.files import building_folder, read_json, write_json
from training.corpus.decontaminate.words import Hashes, Places, Words, canonical

# What is looked at in one go: small enough for the caches of a core.
_BATCH_CHARACTERS = 1 << 18
# A filter of so many bits an n-gram lets about one word in so many through to the exact look-up.
_FILTER_BITS = 64
_TASKS = "tasks.json"


@dataclass(frozen=True)
class Match:
    """An n-gram in a document: characters [start, end) of it, and the n-gram's number."""

    start: int
    end: int
    ngram: int


class NgramIndex:
    """Every n-gram of the tasks' texts once, numbered in the order of their hashes.

    A text of `max_words` words or more gives all its n-grams of `max_words`; a shorter one is an n-gram itself if it
    has `min_words`.
    """

    def __init__(self, tasks: Sequence[str], texts: Callable[[], Sequence[str]], arrays: "NgramArrays") -> None:
        self.tasks = list(tasks)
        self._read_texts = texts
        self._arrays = arrays

    @classmethod
    def of(cls, texts: Sequence[tuple[str, str]], min_words: int, max_words: int) -> "NgramIndex":
        """The index of texts, each (task, text)."""
        tasks = sorted({task for task, _ in texts})
        number = {task: place for place, task in enumerate(tasks)}
        only_texts = [text for _, text in texts]
        task_of_text = np.array([number[task] for task, _ in texts], dtype=np.int64)
        arrays = _make_arrays(Words.of(only_texts), task_of_text, min_words, max_words)
        return cls(tasks, lambda: only_texts, arrays)

    @classmethod
    def load(cls, folder: Path, texts: Path) -> "NgramIndex":
        """What `save` wrote, mapped into memory; `texts` is the file that it was made from."""
        arrays = NgramArrays(*(np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in fields(NgramArrays)))
        return cls(read_json(folder / _TASKS), lambda: [text for _, text in read_texts(texts)], arrays)

    def save(self, folder: Path) -> None:
        """Write the index, whole or not at all."""
        with building_folder(folder) as building:
            for field in fields(NgramArrays):
                np.save(building / f"{field.name}.npy", getattr(self._arrays, field.name))
            write_json(building / _TASKS, self.tasks)

    def __len__(self) -> int:
        return len(self._arrays.hashes)

    def ngram(self, number: int) -> str:
        """The words of an n-gram."""
        arrays = self._arrays
        return canonical(self._texts[arrays.texts[number]][arrays.starts[number] : arrays.ends[number]])

    def tasks_of(self, number: int) -> list[str]:
        """The names of the tasks that an n-gram is of."""
        first, end = self._arrays.first_owners[number : number + 2]
        return [self.tasks[place] for place in self._arrays.owners[first:end]]

    def search(self, documents: Sequence[str]) -> Iterator[tuple[int, Match]]:
        """Every n-gram in every document: (the document's number, the match), by document and place in it."""
        first = 0
        for batch in _batches(documents):
            for number, match in self._search_batch(batch):
                yield first + number, match
            first += len(batch)

    def _search_batch(self, documents: Sequence[str]) -> list[tuple[int, Match]]:
        words = Words.of(documents)
        found = []
        for table in self._tables:
            for first, ngram in zip(*table.find(words), strict=True):
                document = int(words.text_of[first])
                begin = words.text_starts[document]
                start, end = int(words.starts[first] - begin), int(words.ends[first + table.size - 1] - begin)
                # Two n-grams may share a hash: the words decide.
                if canonical(documents[document][start:end]) == self.ngram(ngram):
                    found.append((document, Match(start, end, int(ngram))))
        return sorted(found, key=lambda item: (item[0], item[1].start, -item[1].end))

    @cached_property
    def _texts(self) -> Sequence[str]:
        return self._read_texts()

    @cached_property
    def _tables(self) -> list["_Table"]:
        sizes = np.unique(self._arrays.sizes)
        return [_Table(self._arrays.hashes, self._arrays.sizes, int(size)) for size in sizes]


@dataclass(frozen=True)
class NgramArrays:
    """Of each n-gram: hash, number of words, and where it is: text, characters [start, end).

    Its tasks are `owners` from the place `first_owners[number]` to the next n-gram's.
    """

    hashes: Hashes
    sizes: Places
    texts: Places
    starts: Places
    ends: Places
    first_owners: Places
    owners: Places


class _Table:
    """The n-grams of one size: a bit filter in front of a binary search."""

    def __init__(self, hashes: Hashes, sizes: npt.NDArray[np.int64], size: int) -> None:
        self.size = size
        self._numbers = np.flatnonzero(sizes == size)
        self._hashes = hashes[self._numbers]
        bits = max(16, (len(self._hashes) * _FILTER_BITS - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits >> 3, dtype=np.uint8)
        places = self._hashes >> self._shift
        np.bitwise_or.at(self._filter, places >> np.uint64(3), _bit(places))

    def find(self, words: Words) -> tuple[Places, Places]:
        """Places of first words, and the numbers of the n-grams whose hashes are found there."""
        hashes, firsts = words.ngrams(self.size)
        places = hashes >> self._shift
        passed = np.flatnonzero(self._filter[places >> np.uint64(3)] & _bit(places))
        candidates = hashes[passed]
        at = np.searchsorted(self._hashes, candidates)
        at[at == len(self._hashes)] = 0
        equal = self._hashes[at] == candidates
        return firsts[passed[equal]], self._numbers[at[equal]]


def read_texts(path: Path) -> list[tuple[str, str]]:
    """(task, text) of every line of a file of `mtnlg evaluate texts`. Raises UserError where it is not one."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"no task texts at {path}; make them with: mtnlg evaluate texts {path}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from None
    texts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                record = json.loads(line)
                texts.append((str(record["task"]), str(record["text"])))
            except (json.JSONDecodeError, KeyError, TypeError):
                raise UserError(f'{path}, line {number}: expected an object with "task" and "text"') from None
    return texts


def _make_arrays(words: Words, task_of_text: Places, min_words: int, max_words: int) -> NgramArrays:
    found = list(_ngrams_of(words, len(task_of_text), min_words, max_words))
    hashes, firsts, sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    unique, kept, group = np.unique(hashes, return_index=True, return_inverse=True)
    first_words, sizes = firsts[kept], sizes[kept]
    texts = words.text_of[first_words]
    begins = words.text_starts[texts]
    # The pairs of n-gram and task, each once, by n-gram.
    tasks = int(task_of_text.max(initial=0)) + 1
    pairs = np.unique(group * tasks + task_of_text[words.text_of[firsts]])
    return NgramArrays(
        unique,
        sizes,
        texts,
        words.starts[first_words] - begins,
        words.ends[first_words + sizes - 1] - begins,
        np.searchsorted(pairs // tasks, np.arange(len(unique) + 1)),
        pairs % tasks,
    )


def _ngrams_of(
    words: Words, texts: int, min_words: int, max_words: int
) -> Iterator[tuple[Hashes, Places, npt.NDArray[np.int64]]]:
    """(hashes, first words, sizes): the n-grams of long texts, then the short texts themselves."""
    per_text = np.bincount(words.text_of, minlength=texts)
    for size in range(max_words, min_words - 1, -1):
        hashes, firsts = words.ngrams(size)
        if size < max_words:
            whole = per_text[words.text_of[firsts]] == size
            hashes, firsts = hashes[whole], firsts[whole]
        yield hashes, firsts, np.full(len(hashes), size)


def _bit(places: Hashes) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))


def _batches(documents: Sequence[str]) -> Iterator[Sequence[str]]:
    first, characters = 0, 0
    for number, document in enumerate(documents):
        characters += len(document)
        if characters >= _BATCH_CHARACTERS:
            yield documents[first : number + 1]
            first, characters = number + 1, 0
    if first < len(documents):
        yield documents[first:]
