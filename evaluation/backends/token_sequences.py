"""Token ids as tuples, which sort so that those with the longest common beginning are neighbours."""

TokenSequence = tuple[int, ...]


def common_prefix(one: TokenSequence, other: TokenSequence) -> int:
    """Number of tokens that both begin with; bisection, since comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
