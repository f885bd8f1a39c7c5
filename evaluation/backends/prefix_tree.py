"""Which long prefixes of many sequences are computed once, before the rows that stand behind them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evaluation.backends.packing import shared_lengths
from evaluation.backends.token_sequences import TokenSequence

# A shorter prefix is not worth passes through the model of its own.
_SHORTEST = 64


@dataclass(frozen=True)
class Trunk:
    """The first `length` tokens of `example`, and what stands behind them: sequences, and longer trunks.

    `example`, `leaves` and those of `children` are indices of sequences that all begin with these tokens.
    """

    length: int
    example: int
    leaves: tuple[int, ...]
    children: tuple["Trunk", ...]


def plan_trunks(sequences: Sequence[TokenSequence], needed: Sequence[int], room: int) -> Trunk:
    """The root, of length 0, of a tree that holds every sequence as a leaf once; the sequences are distinct.

    A prefix becomes a trunk when many sequences share it: what begins with it has more than `room` tokens, too many
    for one row. `needed` is the first token of each sequence whose hidden state is asked for: no trunk reaches it.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    shared = shared_lengths([sequences[index] for index in order])

    def grow(first: int, stop: int, length: int) -> Trunk:
        leaves: list[int] = []
        children: list[Trunk] = []
        for begin, end in _runs(shared, first, stop, length + _SHORTEST):
            members = order[begin:end]
            reach = min([*shared[begin : end - 1], *(needed[member] for member in members)])
            tokens = sum(len(sequences[member]) - length for member in members)
            tokens -= sum(common - length for common in shared[begin : end - 1])
            if len(members) > 1 and reach >= length + _SHORTEST and tokens > room:
                children.append(grow(begin, end, reach))
            else:
                leaves.extend(members)
        return Trunk(length, order[first], tuple(leaves), tuple(children))

    return grow(0, len(order), 0)


def _runs(shared: Sequence[int], first: int, stop: int, least: int) -> Iterator[tuple[int, int]]:
    """Split `first` to `stop` (exclusive) where neighbours share fewer than `least` tokens."""
    begin = first
    for end in range(first + 1, stop + 1):
        if end == stop or shared[end - 1] < least:
            yield begin, end
            begin = end
