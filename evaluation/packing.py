"""Token sequences that share a prefix, laid out so that the prefix is computed once.

A pack is one row of tokens: the shared prefix, then what is left of each member (its branch). Positions
restart after the prefix for every branch, and a branch attends to the prefix and to itself only, so each
member's hidden states are those that it would have in a row of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

TokenSequence = tuple[int, ...]

# Branches whose shared prefix is shorter than 1/3 of them gain less than the longer row costs in attention.
_WORTH_SHARING = 3


@dataclass(frozen=True)
class Pack:
    """One row: `prefix` shared tokens, then the branches of `members`, which begin at columns `starts`."""

    tokens: TokenSequence
    prefix: int
    members: tuple[int, ...]
    starts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def columns(self, branch: int, first: int, stop: int) -> list[int]:
        """The row's columns that hold tokens `first` to `stop` (exclusive) of the branch's member."""
        shift = self.starts[branch] - self.prefix
        return [index if index < self.prefix else index + shift for index in range(first, stop)]


def make_packs(sequences: Sequence[TokenSequence], longest: int) -> list[Pack]:
    """Pack distinct sequences, neighbours in lexicographic order together, in rows of up to `longest` tokens.

    A sequence longer than `longest` gets a row of its own. Members are indices into `sequences`.
    """
    packs: list[Pack] = []
    group: list[int] = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        if group and not _joins(sequences, group, index, longest):
            packs.append(_pack(sequences, group))
            group = []
        group.append(index)
    if group:
        packs.append(_pack(sequences, group))
    return packs


def row_tensors(packs: Sequence[Pack]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids [b, t], positions [b, t] and an attention mask [b, 1, t, t] that is True where a row may look.

    Rows are padded on the right. Padding looks at the prefix and at padding, so that no row of the mask is
    empty (its softmax would be NaN), and nothing looks at padding.
    """
    width = max(len(pack) for pack in packs)
    tokens = torch.zeros(len(packs), width, dtype=torch.long)
    positions = torch.zeros(len(packs), width, dtype=torch.long)
    segments = torch.full((len(packs), width), -1)
    for row, pack in enumerate(packs):
        tokens[row, : len(pack)] = torch.tensor(pack.tokens)
        positions[row, : pack.prefix] = torch.arange(pack.prefix)
        segments[row, : pack.prefix] = 0
        for branch, (start, stop) in enumerate(zip(pack.starts, [*pack.starts[1:], len(pack)], strict=True)):
            positions[row, start:stop] = torch.arange(pack.prefix, pack.prefix + stop - start)
            segments[row, start:stop] = branch + 1
    in_sight = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    return tokens, positions, (in_sight & torch.ones(width, width, dtype=torch.bool).tril())[:, None]


def _joins(sequences: Sequence[TokenSequence], group: Sequence[int], index: int, longest: int) -> bool:
    together = [sequences[member] for member in [*group, index]]
    shared = _common_prefix(together[0], together[-1])
    own = sum(len(sequence) - shared for sequence in together)
    return shared * _WORTH_SHARING >= max(map(len, together)) and shared + own <= longest


def _pack(sequences: Sequence[TokenSequence], group: Sequence[int]) -> Pack:
    # Of sorted sequences, the first and the last differ the earliest.
    prefix = _common_prefix(sequences[group[0]], sequences[group[-1]])
    row = list(sequences[group[0]][:prefix])
    starts = []
    for member in group:
        starts.append(len(row))
        row.extend(sequences[member][prefix:])
    return Pack(tuple(row), prefix, tuple(group), tuple(starts))


def _common_prefix(one: TokenSequence, other: TokenSequence) -> int:
    length = min(len(one), len(other))
    return next((index for index in range(length) if one[index] != other[index]), length)
