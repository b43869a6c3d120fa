"""Which steps of two outlines belong together."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnshape.comparing.likeness import Flow, Likeness, Traits
from attnshape.comparing.outline import Outline, OutlineStep
from attnshape.model import Reference

_MOST_CELLS = 90_000
"""Up to how many pairs of steps each pair is looked at."""
_ROUNDS = 4
_SAMENESS: tuple[Callable[[Traits], object], ...] = (lambda one: one.key, lambda one: (one.base, one.signatures))
"""By what many steps are aligned before the rest between them is: untouched ones first, then those of one kind."""

Match = tuple[OutlineStep | None, OutlineStep | None]
TraitsMatch = tuple[Traits | None, Traits | None]


@dataclass
class Alignment:
    """The steps of both sides in one order, and how the steps and inputs of one are those of the other."""

    inputs: tuple[Match, ...] = ()
    steps: tuple[Match, ...] = ()
    moved: frozenset[int] = frozenset()
    """The new numbers of the steps that belong together with one that stood elsewhere."""
    to_new: dict[int, int] = field(default_factory=dict)
    """The new number of each old step that is still there."""
    to_old: dict[int, int] = field(default_factory=dict)
    inputs_to_new: dict[str, str] = field(default_factory=dict)


def align(old: Outline, new: Outline) -> Alignment:
    """Return how two outlines belong together; always the same for the same two.

    Steps are aligned first by what they are, then again by their neighbours in the data flow too, as these were
    aligned before, until nothing moves. What lies inside of a composite is aligned with what lies inside of the
    composite that it belongs to.
    """
    given_old, given_new = ([Traits(one, one.expression) for one in side.inputs] for side in (old, new))
    alike = _Alike(Likeness(given_old, given_new), lambda a, b: 0.0)
    inputs = list(_with_moved(list(_in_order(given_old, given_new, alike)), set()))
    given = {a.outputs[0].name or "": b.outputs[0].name or "" for a, b in inputs if a is not None and b is not None}
    sides = _Side(old), _Side(new)
    likeness = Likeness(*(side.all for side in sides))
    best = Alignment(tuple(inputs), inputs_to_new=given)
    for _ in range(_ROUNDS):
        before = best.to_new
        alike = _Alike(likeness, _Neighbours(*sides, before, given))
        best = _aligned(*sides, Alignment(best.inputs, inputs_to_new=given), alike)
        if best.to_new == before:
            break
    return best


@dataclass(frozen=True)
class _Alike:
    """How alike two steps are, in the data flow as it was aligned before."""

    likeness: Likeness
    flow: Flow

    def __call__(self, old: Traits, new: Traits) -> float:
        return self.likeness.of(old, new, self.flow)


class _Side:
    """One outline's steps by the composite that they lie in, and who reads each."""

    def __init__(self, outline: Outline) -> None:
        self.all: list[Traits] = []
        self.inner: dict[int | None, list[Traits]] = {}
        self.readers: dict[int, list[int]] = {}
        for step in outline.steps:
            self.all.append(Traits(step, outline.own_text(step)))
            self.inner.setdefault(step.parent, []).append(self.all[-1])
            for reference in step.uses:
                if reference.step is not None:
                    self.readers.setdefault(reference.step, []).append(step.index)


class _Neighbours:
    """How much of what two steps read, and of what reads them, belongs together."""

    def __init__(self, old: _Side, new: _Side, to_new: Mapping[int, int], inputs: Mapping[str, str]) -> None:
        self._old, self._new = old, new
        self._to_new, self._inputs = to_new, inputs

    def __call__(self, old: OutlineStep, new: OutlineStep) -> float:
        """Return the share, from 0 to 1; what is read counts twice as much."""
        read = _shared([self._moved(one) for one in old.uses], list(new.uses))
        readers = [self._to_new.get(one) for one in self._old.readers.get(old.index, ())]
        return (2 * read + _shared(readers, self._new.readers.get(new.index, ()))) / 3

    def _moved(self, reference: Reference) -> Reference | None:
        if reference.step is None:
            name = self._inputs.get(reference.input or "")
            return Reference(input=name) if name is not None else None
        step = self._to_new.get(reference.step)
        return Reference(step=step, output=reference.output) if step is not None else None


def _shared(old: Sequence[object], new: Sequence[object]) -> float:
    common = Counter(one for one in old if one is not None) & Counter(new)
    return sum(common.values()) / max(1, len(old), len(new))


def _aligned(old: _Side, new: _Side, into: Alignment, alike: _Alike) -> Alignment:
    moved: set[int] = set()
    rows: list[Match] = []

    def within(old_parent: int | None, new_parent: int | None) -> None:
        before, after = old.inner.get(old_parent, []), new.inner.get(new_parent, [])
        for one, other in _with_moved(list(_in_order(before, after, alike)), moved):
            rows.append((one, other))
            if one is not None and other is not None:
                into.to_new[one.index] = other.index
                into.to_old[other.index] = one.index
                within(one.index, other.index)
            elif one is not None:
                rows.extend((inner, None) for inner in _all_within(old, one.index))
            elif other is not None:
                rows.extend((None, inner) for inner in _all_within(new, other.index))

    # a composite that is its own parent would never end, and outlines number parents before what lies in them
    within(None, None)
    into.steps, into.moved = tuple(rows), frozenset(moved)
    return into


def _all_within(side: _Side, parent: int) -> Iterator[OutlineStep]:
    for traits in side.inner.get(parent, []):
        yield traits.step
        yield from _all_within(side, traits.step.index)


def _with_moved(matches: list[TraitsMatch], moved: set[int]) -> Iterator[Match]:
    """Return the matches with each removed step put beside the added one that is the very same."""
    gone: dict[object, list[int]] = {}
    for place, (one, other) in enumerate(matches):
        if one is not None and other is None:
            gone.setdefault((one.key, one.step.expression), []).append(place)
    from_: dict[int, int] = {}
    for place, (one, other) in enumerate(matches):
        if one is None and other is not None and (places := gone.get((other.key, other.step.expression))):
            from_[place] = places.pop(0)
            moved.add(other.step.index)
    for place, (one, other) in enumerate(matches):
        one = matches[from_[place]][0] if place in from_ else one
        if place not in from_.values():
            yield one.step if one is not None else None, other.step if other is not None else None


def _in_order(old: Sequence[Traits], new: Sequence[Traits], alike: _Alike) -> Iterator[TraitsMatch]:
    """Return the best alignment that keeps both orders; what wasn't touched at both ends is aligned at once."""
    start = 0
    while start < min(len(old), len(new)) and old[start].key == new[start].key:
        yield old[start], new[start]
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end].key == new[-1 - end].key:
        end += 1
    yield from _between(old[start : len(old) - end], new[start : len(new) - end], alike)
    yield from zip(old[len(old) - end :], new[len(new) - end :], strict=True)


def _between(
    old: Sequence[Traits], new: Sequence[Traits], alike: _Alike, kinds: Sequence[Callable[[Traits], object]] = _SAMENESS
) -> Iterator[TraitsMatch]:
    if len(old) * len(new) <= _MOST_CELLS:
        yield from _best(old, new, alike)
        return
    if not kinds:
        yield from ((one, None) for one in old)
        yield from ((None, one) for one in new)
        return
    same, *others = kinds
    matcher = difflib.SequenceMatcher(None, list(map(same, old)), list(map(same, new)), autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[a:b], new[c:d], strict=True)
        else:
            yield from _between(old[a:b], new[c:d], alike, others)


def _best(old: Sequence[Traits], new: Sequence[Traits], alike: _Alike) -> Iterator[TraitsMatch]:
    """Return the alignment of the greatest total likeness; of equals, one that doesn't depend on which side is which.

    `best[i][j]` is the total of the steps from `i` and from `j` on.
    """
    alikes = [[alike(one, other) for other in new] for one in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            skipped = max(best[i + 1][j], best[i][j + 1])
            best[i][j] = max(skipped, alikes[i][j] + best[i + 1][j + 1]) if alikes[i][j] else skipped
    i = j = 0
    added: list[TraitsMatch] = []
    while i < len(old) or j < len(new):
        both = i < len(old) and j < len(new)
        if both and alikes[i][j] and best[i][j] == alikes[i][j] + best[i + 1][j + 1]:
            yield from added
            added = []
            yield old[i], new[j]
            i, j = i + 1, j + 1
            continue
        removes, adds = i < len(old) and best[i][j] == best[i + 1][j], j < len(new) and best[i][j] == best[i][j + 1]
        if removes and (not adds or old[i].order <= new[j].order):
            yield old[i], None
            i += 1
        else:
            added.append((None, new[j]))
            j += 1
    yield from added
