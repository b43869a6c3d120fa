"""A long common subsequence of two sequences, in time that grows linearly with their lengths."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

_MOST_EDITS = 128
"""After this number of insertions and deletions the way that got furthest is taken, and the search begins anew."""

_Pair = tuple[int, int]


def common_subsequence(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[_Pair]:
    """Return the indices of a long common subsequence on both sides, in order.

    Items that each side has once are paired first, as in patience diff; what lies between them is compared by Myers'
    algorithm (1986, "An O(ND) difference algorithm and its variations"). The result is the longest where there are
    at most 128 edits between two such items.

    >>> common_subsequence("abcd", "xbyd")
    [(1, 1), (3, 3)]
    """
    pairs: list[_Pair] = []
    i = j = 0
    for a, b in [*_unique_items(old, new), (len(old), len(new))]:
        pairs += _shortest_edits(old, new, (i, j), (a, b))
        pairs.append((a, b))
        i, j = a + 1, b + 1
    return pairs[:-1]


def _unique_items(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[_Pair]:
    """Return the pairs of items that each side has once, as far as they are in the same order."""
    counts = Counter(old), Counter(new)
    places = {item: place for place, item in enumerate(new) if counts[1][item] == 1}
    pairs = [(place, places[item]) for place, item in enumerate(old) if counts[0][item] == 1 and item in places]
    return _longest_rising(pairs)


def _longest_rising(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Return the longest subsequence of the pairs in which the second numbers rise, as the first ones do."""
    last: list[int] = []
    ends: list[int] = []
    """For each length, the smallest last number of a rising subsequence, and the place of its pair."""
    before: list[int] = []
    for place, (_, number) in enumerate(pairs):
        length = bisect.bisect_left(last, number)
        before.append(ends[length - 1] if length else -1)
        last[length : length + 1], ends[length : length + 1] = [number], [place]
    rising = []
    place = ends[-1] if ends else -1
    while place >= 0:
        rising.append(pairs[place])
        place = before[place]
    return rising[::-1]


def _shortest_edits(old: Sequence[Hashable], new: Sequence[Hashable], start: _Pair, end: _Pair) -> Iterator[_Pair]:
    """Yield the pairs of equal items between two places, with few insertions and deletions between them."""
    while start != end:
        pairs, start = _until(old, new, start, end)
        yield from pairs


def _until(old: Sequence[Hashable], new: Sequence[Hashable], start: _Pair, end: _Pair) -> tuple[list[_Pair], _Pair]:
    """Return the pairs up to the end, or up to the furthest place within the most edits, and that place."""
    reached = {1: start[0]}
    """How far each diagonal, an offset of `old` to `new`, gets into `old`."""
    history: list[dict[int, int]] = []
    offset = start[0] - start[1]
    for edits in range(_MOST_EDITS + 1):
        history.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            inserts = diagonal == -edits or (
                diagonal != edits and reached.get(diagonal - 1, -1) < reached.get(diagonal + 1, -1)
            )
            i = reached[diagonal + 1] if inserts else reached[diagonal - 1] + 1
            j = i - diagonal - offset
            while i < end[0] and j < end[1] and old[i] == new[j]:
                i, j = i + 1, j + 1
            reached[diagonal] = i
            if (i, j) == end:
                return _pairs(history, start, end), end
    inside = [
        (2 * i - diagonal, -abs(diagonal), i, i - diagonal - offset)
        for diagonal, i in reached.items()
        if (diagonal - _MOST_EDITS) % 2 == 0 and i <= end[0] and i - diagonal - offset <= end[1]
    ]
    furthest = max(inside)[2:]
    return _pairs(history, start, furthest), furthest


def _pairs(history: Sequence[dict[int, int]], start: _Pair, end: _Pair) -> list[_Pair]:
    """Return the pairs on the way to a place, of which `history` has what was reached before each edit."""
    pairs: list[_Pair] = []
    offset = start[0] - start[1]
    i, j = end
    for edits in range(len(history) - 1, -1, -1):
        reached, diagonal = history[edits], i - j - offset
        inserts = diagonal == -edits or (
            diagonal != edits and reached.get(diagonal - 1, -1) < reached.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if inserts else diagonal - 1
        at = reached[before] if edits else start[0]
        first = at if inserts or not edits else at + 1
        pairs += [(place, place - diagonal - offset) for place in range(i - 1, first - 1, -1)]
        i, j = at, at - before - offset
    return pairs[::-1]
