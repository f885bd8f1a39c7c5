"""Token sequences in rows in which every shared prefix stands, and is computed, once.

A row (a pack) holds the prefix tree of its members: a column a tree node, in the order in which the members are
written, the lexicographic one. A token's position is its depth in the tree and it attends to its ancestors and itself
only, so each member's hidden states are those that it would have in a row of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from evaluation.backends.token_sequences import TokenSequence, common_prefix


@dataclass(frozen=True)
class Pack:
    """One row: `tokens` by column, and for each of `members` the columns that hold its tokens, in order."""

    tokens: TokenSequence
    members: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.tokens)

    def columns(self, branch: int, first: int, stop: int) -> list[int]:
        """The columns that hold tokens `first` to `stop` (exclusive) of the branch's member."""
        return list(self.paths[branch][first:stop])


def make_packs(
    sequences: Sequence[TokenSequence], longest: int, cost: Callable[[int], float] = float, after: int = 0
) -> list[Pack]:
    """Pack distinct sequences, neighbours in lexicographic order together, in the cheapest rows.

    `cost` of a row is a function of its number of tokens. Rows have up to `longest` tokens; a sequence that is longer
    gets a row of its own. The first `after` tokens, which all sequences share, are left out: columns and their
    tokens count from there. Members are indices into `sequences`.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = shared_lengths([sequences[index] for index in order])
    # Of the cheapest rows that hold the first `stop` sequences: what they cost, and where the last of them begins.
    cheapest = [0.0]
    begins = [0]
    for stop in range(1, len(order) + 1):
        tokens = 0
        best = (float("inf"), 0)
        for start in range(stop - 1, -1, -1):
            tokens += len(sequences[order[start]]) - (shared[start] if start < stop - 1 else after)
            if tokens > longest and start < stop - 1:
                break
            best = min(best, (cheapest[start] + cost(tokens), start))
        cheapest.append(best[0])
        begins.append(best[1])
    packs: list[Pack] = []
    stop = len(order)
    while stop:
        packs.append(_pack(sequences, order[begins[stop] : stop], shared[begins[stop] : stop - 1], after))
        stop = begins[stop]
    return packs[::-1]


def pack_alone(sequences: Sequence[TokenSequence]) -> list[Pack]:
    """Every sequence in a row of its own."""
    return [_pack(sequences, [index], [], 0) for index in range(len(sequences))]


def row_tensors(packs: Sequence[Pack], after: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids [b, t], positions [b, t] and an attention mask [b, 1, t, after + t], True where a row may look.

    Every token looks at the `after` tokens that stand before the row. Rows are padded on the right. Padding looks at
    itself, so that no row of the mask is empty (its softmax would be NaN), and nothing else looks at padding.
    """
    width = max(len(pack) for pack in packs)
    tokens = torch.zeros(len(packs), width, dtype=torch.long)
    positions = torch.full((len(packs), width), after)
    mask = torch.zeros(len(packs), 1, width, after + width, dtype=torch.bool)
    mask[..., :after] = True
    mask[..., after:] = torch.eye(width, dtype=torch.bool)
    for row, pack in enumerate(packs):
        tokens[row, : len(pack)] = torch.tensor(pack.tokens)
        written = 0
        for path in pack.paths:
            columns = torch.tensor(path)
            fresh = int((columns < written).sum())
            new = columns[fresh:]
            positions[row, new] = torch.arange(after + fresh, after + len(path))
            mask[row, 0, new[:, None], after + columns[:fresh]] = True
            mask[row, 0, new[:, None], after + new] = torch.ones(len(new), len(new), dtype=torch.bool).tril()
            written += len(new)
    return tokens, positions, mask


def shared_lengths(ordered: Sequence[TokenSequence]) -> list[int]:
    """Of every sequence but the last: how many tokens it shares with the next."""
    return [common_prefix(one, other) for one, other in pairwise(ordered)]


def _pack(sequences: Sequence[TokenSequence], members: Sequence[int], shared: Sequence[int], after: int) -> Pack:
    tokens: list[int] = []
    paths: list[tuple[int, ...]] = []
    for member, common in zip(members, [after, *shared], strict=True):
        known = paths[-1][: common - after] if paths else ()
        fresh = sequences[member][common:]
        paths.append((*known, *range(len(tokens), len(tokens) + len(fresh))))
        tokens.extend(fresh)
    return Pack(tuple(tokens), tuple(members), tuple(paths))
