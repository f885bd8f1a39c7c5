"""The inner loops, compiled by Numba: words of UTF-8 text, MinHash, exact Jaccard, buckets of candidates.

Import it inside functions only: Numba takes half a second to load. The compiled code is cached beside this file, or in
the user's cache folder. All release the interpreter's lock, so that threads share the cores. In compiled code an
unsigned and a signed integer make a float, which is why every constant has a type.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Halves = NDArray[np.uint32]
Integers = NDArray[np.int64]

# FNV-1a's offset and prime; MurmurHash3's finaliser; odd multipliers from the golden ratio and SplitMix64.
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_1, _MIX_2, _33 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(33)
_STEP_1, _STEP_2, _32 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(32)
_ZERO = np.uint64(0)


def _compiled(function: Function) -> Function:
    try:
        return cast(Function, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder for the cache can be written
        return cast(Function, njit(nogil=True)(function))


@_compiled
def _mix(value: np.uint64) -> np.uint64:
    value ^= value >> _33
    value *= _MIX_1
    value ^= value >> _33
    value *= _MIX_2
    return value ^ (value >> _33)


@_compiled
def _hash_words(data: Bytes, start: int, end: int, letters: NDArray[np.int32], words: Hashes) -> int:
    """Hashes of the words of data[start:end] (UTF-8) into `words`; returns how many. `letters`: see words.py."""
    count = 0
    value = _OFFSET
    inside = False
    at = start
    while at < end:
        code = np.int64(data[at])
        length = 1 if code < 0x80 else 2 if code < 0xE0 else 3 if code < 0xF0 else 4
        if at + length > end:
            break
        if length > 1:
            code &= (1 << (7 - length)) - 1
            for next_byte in range(at + 1, at + length):
                code = (code << 6) | (np.int64(data[next_byte]) & 63)
        at += length
        letter = np.int64(letters[code]) if code < len(letters) else code
        if letter != 0:
            value = (value ^ np.uint64(letter)) * _PRIME
            inside = True
        elif inside:
            words[count] = _mix(value)
            count += 1
            value = _OFFSET
            inside = False
    if inside:
        words[count] = _mix(value)
        count += 1
    return count


@_compiled
def _hash_ngrams(words: Hashes, count: int, ngram: int, out: Hashes) -> int:
    """Hashes of the n-grams of `count` words into `out`; a shorter text is one n-gram. Returns how many."""
    if count == 0:
        return 0
    size = min(ngram, count)
    for first in range(count - size + 1):
        value = _ZERO
        for word in range(first, first + size):
            value = value * _STEP_1 + words[word]
        out[first] = _mix(value)
    return count - size + 1


@_compiled
def _longest(offsets: Integers) -> int:
    longest = 0
    for document in range(len(offsets) - 1):
        longest = max(longest, offsets[document + 1] - offsets[document])
    return longest


@_compiled
def sign(
    data: Bytes,
    offsets: Integers,
    letters: NDArray[np.int32],
    ngram: int,
    multipliers: Halves,
    additions: Halves,
    bands: Integers,
) -> tuple[Hashes, Hashes, Integers]:
    """Band keys [bands, documents], hashes of the whole texts [2, documents] and numbers of n-grams [documents].

    Document i is data[offsets[i]:offsets[i + 1]]. A MinHash is the least of (a h + b) mod 2^32 over the n-grams'
    hashes h, for each of the multipliers a and summands b. `bands` [bands, rows] says which MinHashes a band holds;
    its key is a hash of them.
    """
    documents = len(offsets) - 1
    keys = np.zeros((len(bands), documents), np.uint64)
    least = np.empty(len(multipliers), np.uint32)
    whole = np.zeros((2, documents), np.uint64)
    counts = np.zeros(documents, np.int64)
    room = _longest(offsets) // 2 + 1
    words = np.empty(room, np.uint64)
    ngrams = np.empty(room, np.uint64)
    halves = np.empty(room, np.uint32)
    for document in range(documents):
        found = _hash_words(data, offsets[document], offsets[document + 1], letters, words)
        low, high = _ZERO, _ZERO
        for place in range(found):
            low = low * _STEP_1 + words[place]
            high = high * _STEP_2 + words[place]
        whole[0, document], whole[1, document] = _mix(low), _mix(high)
        size = _hash_ngrams(words, found, ngram, ngrams)
        counts[document] = size
        for place in range(size):
            halves[place] = np.uint32(ngrams[place] >> _32)
        for hash_number in range(len(multipliers)):
            multiplier, addition = multipliers[hash_number], additions[hash_number]
            smallest = np.uint32(0xFFFFFFFF)
            for place in range(size):
                smallest = min(smallest, np.uint32(halves[place] * multiplier + addition))
            least[hash_number] = smallest
        for band in range(len(bands)):
            key = _ZERO
            for hash_number in bands[band]:
                key = key * _STEP_1 + np.uint64(least[hash_number])
            keys[band, document] = _mix(key)
    return keys, whole, counts


@_compiled
def ngram_sets(
    data: Bytes, offsets: Integers, letters: NDArray[np.int32], ngram: int, rows: Integers
) -> tuple[Hashes, Integers]:
    """The sets of n-grams of the documents `rows`, ascending and end to end, and the sets' sizes [rows]."""
    longest = _longest(offsets) // 2 + 1
    words = np.empty(longest, np.uint64)
    ngrams = np.empty(longest, np.uint64)
    total = 0
    for row in rows:
        total += (offsets[row + 1] - offsets[row]) // 2 + 1
    out = np.empty(total, np.uint64)
    sizes = np.zeros(len(rows), np.int64)
    at = 0
    for number, row in enumerate(rows):
        found = _hash_words(data, offsets[row], offsets[row + 1], letters, words)
        ordered = np.sort(ngrams[: _hash_ngrams(words, found, ngram, ngrams)])
        begin = at
        for place in range(len(ordered)):
            if place == 0 or ordered[place] != ordered[place - 1]:
                out[at] = ordered[place]
                at += 1
        sizes[number] = at - begin
    return out[:at].copy(), sizes


@_compiled
def jaccard(values: Hashes, bounds: Integers, a: int, b: int, threshold: float) -> float:
    """The Jaccard similarity of the sets a and b, exact where it is `threshold` or more, else possibly 0.

    Set i is values[bounds[i, 0]:bounds[i, 1]], ascending.
    """
    at_a, end_a, at_b, end_b = bounds[a, 0], bounds[a, 1], bounds[b, 0], bounds[b, 1]
    size = end_a - at_a + end_b - at_b
    # J >= t needs that 1 - t of the union is outside the intersection, where the union is at most size / (1 + t).
    allowed = np.int64(size * (1 - threshold) / (1 + threshold) + 1e-6) + 1
    outside = abs((end_a - at_a) - (end_b - at_b))
    if size == 0 or outside > allowed:
        return 0.0
    shared = outside = 0
    while at_a < end_a and at_b < end_b:
        if values[at_a] == values[at_b]:
            shared += 1
            at_a += 1
            at_b += 1
            continue
        outside += 1
        if outside > allowed:
            return 0.0
        if values[at_a] < values[at_b]:
            at_a += 1
        else:
            at_b += 1
    return float(shared / (size - shared))


@_compiled
def similarities(values: Hashes, bounds: Integers, left: Integers, right: Integers) -> NDArray[np.float64]:
    """The Jaccard similarities of the sets left[i] and right[i]."""
    found = np.empty(len(left), np.float64)
    for pair in range(len(left)):
        found[pair] = jaccard(values, bounds, left[pair], right[pair], 0.0)
    return found


@_compiled
def _root(parent: Integers, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@_compiled
def _unite(parent: Integers, a: int, b: int) -> None:
    first, second = _root(parent, a), _root(parent, b)
    parent[max(first, second)] = min(first, second)


@_compiled
def connected_components(left: Integers, right: Integers, nodes: int) -> Integers:
    """The least node of each node's component [nodes], of a graph with the edges left[i], right[i]."""
    parent = np.arange(nodes)
    for edge in range(len(left)):
        _unite(parent, left[edge], right[edge])
    for node in range(nodes):
        parent[node] = _root(parent, node)
    return parent


@_compiled
def _compare(
    values: Hashes, bounds: Integers, threshold: float, parent: Integers, edges: Integers, a: int, b: int
) -> bool:
    """Join a and b by an edge where they are alike. The first free place of `edges` [2, n + 1] is edges[0, n]."""
    if jaccard(values, bounds, a, b, threshold) < threshold:
        return False
    free = edges[0, -1]
    edges[0, free], edges[1, free] = a, b
    edges[0, -1] += 1
    _unite(parent, a, b)
    return True


@_compiled
def _group(
    values: Hashes,
    bounds: Integers,
    threshold: float,
    parent: Integers,
    edges: Integers,
    inside: Integers,
    budget: int,
) -> tuple[Integers, Integers, int]:
    """The documents `inside` in groups, each with its pivot first; where groups begin; comparisons made.

    The first document that no group holds is the next pivot, and is compared with all that no group holds.
    """
    waiting = inside.copy()
    size = len(waiting)
    order = np.empty(size, np.int64)
    begins = np.zeros(size + 1, np.int64)
    groups = placed = spent = 0
    while size > 0 and spent < budget:
        pivot = waiting[0]
        order[placed] = pivot
        placed += 1
        still = 0
        for place in range(1, size):
            other = waiting[place]
            same = _root(parent, pivot) == _root(parent, other)
            if not same:
                spent += 1
                same = _compare(values, bounds, threshold, parent, edges, pivot, other)
            if same:
                order[placed] = other
                placed += 1
            else:
                waiting[still] = other
                still += 1
        size = still
        groups += 1
        begins[groups] = placed
    return order[:placed], begins[: groups + 1], spent


@_compiled
def _merge_groups(
    values: Hashes,
    bounds: Integers,
    threshold: float,
    parent: Integers,
    edges: Integers,
    order: Integers,
    begins: Integers,
    budget: int,
) -> int:
    """Join groups whose members are alike; returns the comparisons made. A pivot has met all of the later groups."""
    spent = 0
    for a in range(len(begins) - 1):
        for b in range(a + 1, len(begins) - 1):
            joined = _root(parent, order[begins[a]]) == _root(parent, order[begins[b]])
            for x in range(begins[a] + 1, begins[a + 1]):
                if joined or spent >= budget:
                    break
                for y in range(begins[b], begins[b + 1]):
                    spent += 1
                    if _compare(values, bounds, threshold, parent, edges, order[x], order[y]):
                        joined = True
                        break
        if spent >= budget:
            break
    return spent


@_compiled
def join(
    values: Hashes, bounds: Integers, members: Integers, starts: Integers, threshold: float, limit: int
) -> tuple[Integers, Integers]:
    """Compare the documents of each bucket: edges [2, n] that join what is alike, and statistics.

    Bucket i is members[starts[i]:starts[i + 1]], ascending numbers of sets, whose order is that of priority. Documents
    that are joined already, by this bucket or one before, are not compared again, so that thousands of copies take one
    comparison each. All others of a bucket are, until `limit` comparisons for each of its documents are spent: first
    pivots with all that is left, then the groups with each other, since members may be alike where pivots are not.
    Statistics: comparisons, buckets whose limit was reached.
    """
    parent = np.arange(len(bounds))
    edges = np.zeros((2, len(parent) + 1), np.int64)
    comparisons = unfinished = 0
    for bucket in range(len(starts) - 1):
        inside = members[starts[bucket] : starts[bucket + 1]]
        budget = limit * len(inside)
        order, begins, spent = _group(values, bounds, threshold, parent, edges, inside, budget)
        spent += _merge_groups(values, bounds, threshold, parent, edges, order, begins, budget - spent)
        comparisons += spent
        unfinished += spent >= budget
    return edges[:, : edges[0, -1]].copy(), np.array([comparisons, unfinished])
