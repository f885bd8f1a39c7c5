"""GPT-2's byte-level BPE at tiktoken's speed, with the ids of Hugging Face's tokenizers.

tiktoken knows no ids besides the merges' order, so it runs on ranks (bytes first, then merges in order) and a table
turns ranks into the vocabulary's ids. It joins two parts whenever together they are a token, where the file's merges
name the two parts; for a vocabulary that a BPE trainer made these are the same, and `open_encoder` tries it on the
vocabulary itself. Where they differ, the slower library does all the work.
"""

import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from foundation.errors import UserError
from foundation.files import read_json
from foundation.tokenizer import END_OF_TEXT, TokenizerFiles, load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TokenIds = npt.NDArray[np.uint32]

# GPT-2's pattern as tiktoken writes it: the same pieces of text, found without backtracking.
_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# Between these two characters the pattern always ends one piece and begins another.
_BOUNDARY = re.compile(r"(?<=\S)[ \n]")
_STRETCH_CHARACTERS = 1 << 16
# tiktoken's engine for patterns gives up on a million white-space characters in a row.
_LONGEST_PIECE = 1 << 19


class Encoder:
    """Texts to token ids, uint32. `vocab_size` counts all tokens, `end` is the id of `<|endoftext|>`."""

    def __init__(self, tokenizer: "Tokenizer", fast: Callable[[str], TokenIds] | None) -> None:
        self.vocab_size: int = tokenizer.get_vocab_size()
        self.end = int(tokenizer.token_to_id(END_OF_TEXT) or 0)  # never None: load_tokenizer adds it
        self._tokenizer = tokenizer
        self._fast = fast

    @property
    def is_fast(self) -> bool:
        """Whether tiktoken does the work."""
        return self._fast is not None

    def encode(self, text: str) -> TokenIds:
        """The ids of one text. `<|endoftext|>` in it becomes its id, as Hugging Face's tokenizers have it."""
        text = _valid(text)
        if self._fast is None:
            return self._slow(text)
        parts = text.split(END_OF_TEXT) if END_OF_TEXT in text else [text]
        if len(parts) == 1 and len(text) <= _STRETCH_CHARACTERS:
            return self._fast(text)
        ids: list[TokenIds] = []
        for number, part in enumerate(parts):
            if number:
                ids.append(np.array([self.end], dtype=np.uint32))
            ids += [self._fast(s) if len(s) <= _LONGEST_PIECE else self._slow(s) for s in _stretches(part)]
        return np.concatenate(ids)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[TokenIds]:
        """The ids of each text, computed by so many threads."""
        if threads == 1 or len(texts) < 2:
            return [self.encode(text) for text in texts]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.encode, texts))

    def _slow(self, text: str) -> TokenIds:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)


def open_encoder(files: TokenizerFiles) -> Encoder:
    """The encoder of a vocab.json and merges.txt. Raises UserError when they are not there, or no byte-level BPE."""
    tokenizer = load_tokenizer(files)
    ranks, ids = _ranks(files)
    if ranks is None:
        return Encoder(tokenizer, None)
    encoder = Encoder(tokenizer, _tiktoken(ranks, ids))
    probe = _probe(ranks)
    if not np.array_equal(encoder.encode(probe), Encoder(tokenizer, None).encode(probe)):
        return Encoder(tokenizer, None)
    return encoder


def _ranks(files: TokenizerFiles) -> tuple[dict[bytes, int] | None, TokenIds]:
    """Every token's bytes and its rank, and each rank's id; no ranks for a BPE that tiktoken cannot run."""
    vocabulary: dict[str, int] = read_json(files.vocab)
    byte_of = _bytes_of_characters()
    tokens = sorted(byte_of, key=lambda character: byte_of[character])
    for line in files.merges.read_text(encoding="utf-8").split("\n"):
        left, space, right = line.rstrip("\r").partition(" ")
        if space and not line.startswith("#version"):
            tokens.append(left + right)
    ids = np.array([vocabulary.get(token, -1) for token in tokens], dtype=np.int64)
    try:
        ranks = {bytes(byte_of[character] for character in token): rank for rank, token in enumerate(tokens)}
    except KeyError as error:
        raise UserError(f"{files.merges} is not of a byte-level BPE: it merges the character {error}") from None
    # Without a token for every byte, or with a token that two merges make, there are no ranks that mean the same.
    complete = bool((ids >= 0).all()) and len(ranks) == len(tokens)
    return ranks if complete else None, ids.astype(np.uint32)


def _tiktoken(ranks: dict[bytes, int], ids: TokenIds) -> Callable[[str], TokenIds]:
    try:
        from tiktoken import Encoding
    except ImportError:
        raise UserError("tiktoken is not installed; pip install 'mtnlg[train]'") from None
    # Without any special token its search for one stops at every character.
    special = {END_OF_TEXT: len(ranks)}
    encoding = Encoding("gpt2", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    in_order = bool((ids == np.arange(len(ids))).all())

    def encode(text: str) -> TokenIds:
        found: TokenIds = encoding.encode_to_numpy(text, disallowed_special=())
        return found if in_order else ids[found]

    return encode


def _probe(ranks: dict[bytes, int]) -> str:
    """A text of tokens in an order that no trainer saw, each token twice at most 40,000 in all."""
    tokens = [token.decode("utf-8", "replace") for token in ranks]
    generator = random.Random(0)
    return "".join(generator.sample(tokens, min(len(tokens), 20_000)) * 2)


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones for themselves, the others from 256 on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _stretches(text: str) -> list[str]:
    """A text in parts of some 65,536 characters that are encoded apart as they are together."""
    found, begin = [], 0
    while len(text) - begin > _STRETCH_CHARACTERS:
        boundary = _BOUNDARY.search(text, begin + _STRETCH_CHARACTERS)
        if boundary is None:
            break
        found.append(text[begin : boundary.start()])
        begin = boundary.start()
    return [*found, text[begin:]]


def _valid(text: str) -> str:
    """The text with lone surrogates, which no UTF-8 file holds, replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
