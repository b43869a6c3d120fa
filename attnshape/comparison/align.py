"""Aligns the steps of two outlines: which old step corresponds to which new one."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from attnshape.comparison.outline import Outline
from attnshape.model.difference import OutlineStep
from attnshape.model.trace import Reference
from attnshape.tracing.operations import FAMILIES, base_name

_MOST_PAIRS = 90_000
"""Up to this number of pairs of steps, every pair is scored."""
_ROUNDS = 4
_EDITED = 0.8
"""The share of common tokens from which an expression counts as an edited version of another."""
_TOKEN = re.compile(r"\w+|\S")
_WORD = re.compile(r"[^\W\d]\w*")

Match = tuple[OutlineStep | None, OutlineStep | None]
"""An old step and the new one that corresponds to it; None if there is none."""


@dataclass
class Alignment:
    """The steps of both sides in one order, and the new counterparts of old steps and inputs."""

    inputs: tuple[Match, ...] = ()
    steps: tuple[Match, ...] = ()
    moved: frozenset[int] = frozenset()
    """The new numbers of the steps that moved."""
    to_new: dict[int, int] = field(default_factory=dict)
    """The new number of each old step that is still there."""
    inputs_to_new: dict[str, str] = field(default_factory=dict)


def align(old: Outline, new: Outline) -> Alignment:
    """Return how two outlines correspond; the result is deterministic.

    Steps are aligned first by what they are, then again by their neighbours in the data flow too, until nothing
    changes. The inner steps of a composite are aligned with those of its counterpart.
    """
    old_inputs, new_inputs = ([_Features(one, one.expression) for one in side.inputs] for side in (old, new))
    similarity = _Similarity(old_inputs, new_inputs)
    ordered = list(_in_order(old_inputs, new_inputs, lambda one, other: similarity.score(one, other, 0.0)))
    inputs = tuple(_with_moved(ordered, set()))
    names = {a.outputs[0].name or "": b.outputs[0].name or "" for a, b in inputs if a is not None and b is not None}
    sides = _Side(old), _Side(new)
    similarity = _Similarity(sides[0].steps, sides[1].steps)
    best = Alignment(inputs, inputs_to_new=names)
    for _ in range(_ROUNDS):
        before = best.to_new
        neighbours = _Neighbours(*sides, before, names)

        def score(one: _Features, other: _Features, neighbours: _Neighbours = neighbours) -> float:
            return similarity.score(one, other, neighbours.share(one.step, other.step))

        best = _aligned(*sides, Alignment(inputs, inputs_to_new=names), score)
        if best.to_new == before:
            break
    return best


# how similar two steps are


@dataclass(frozen=True)
class _Features:
    """A step and the features that it is compared by, computed once."""

    step: OutlineStep
    own_text: str
    """Its expression without its operands."""

    @cached_property
    def base(self) -> str:
        """The operation, without the underscore of its in-place variant."""
        return base_name(self.step.operation)

    @cached_property
    def names(self) -> tuple[str | None, ...]:
        return tuple(output.name for output in self.step.outputs)

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        return tuple(output.signature for output in self.step.outputs)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        return tuple(_TOKEN.findall(self.own_text))

    @cached_property
    def token_counts(self) -> Counter[str]:
        return Counter(self.tokens)

    @cached_property
    def skeleton(self) -> tuple[str, ...]:
        """The tokens with `_` in place of names, except the names of functions."""
        following = (*self.tokens[1:], "")
        pairs = zip(self.tokens, following, strict=False)
        return tuple("_" if _WORD.fullmatch(one) and next_ != "(" else one for one, next_ in pairs)

    @cached_property
    def first_name(self) -> str:
        """The name that the expression begins with, such as a module's."""
        found = _WORD.match(self.own_text)
        return found[0] if found else ""

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for steps that weren't edited."""
        return (self.step.operation, self.own_text, self.names, self.signatures, len(self.step.uses))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """An order that doesn't depend on the steps' positions."""
        return (self.step.expression, self.step.operation, *(name or "" for name in self.names), *self.signatures)


_FeaturesMatch = tuple[_Features | None, _Features | None]
_Score = Callable[[_Features, _Features], float]
_SAMENESS: tuple[Callable[[_Features], object], ...] = (lambda one: one.key, lambda one: (one.base, one.signatures))
"""The keys by which very many steps are aligned first: unedited ones, then those of one kind."""


class _Similarity:
    """Scores how similar the steps of two outlines are."""

    def __init__(self, old: Iterable[_Features], new: Iterable[_Features]) -> None:
        before, after = list(old), list(new)
        self._names = {name for one in before for name in one.names} & {name for one in after for name in one.names}
        self._first_names = {one.first_name for one in before} & {one.first_name for one in after}

    def score(self, old: _Features, new: _Features, neighbours: float) -> float:
        """Return how similar two steps are; 0 if they don't correspond.

        Args:
            old: The old step.
            new: The new step.
            neighbours: The share of their neighbours in the data flow that correspond, from 0 to 1.
        """
        same_names = old.names == new.names and any(old.names)
        same_signatures = old.signatures == new.signatures
        common = _common_tokens(old, new)
        if self._have_other_names(old.names, new.names):
            return 0.0
        if old.base == new.base:
            if not (same_names or same_signatures or common >= _EDITED):
                return 0.0
            operation = 4.0
        elif any(old.base in family and new.base in family for family in FAMILIES):
            if not (same_names or same_signatures):
                return 0.0
            operation = 2.5
        else:
            # code reuses a name for different things, so its signature must agree too
            if not (same_names and same_signatures):
                return 0.0
            operation = 0.0
        if old.first_name != new.first_name and {old.first_name, new.first_name} <= self._first_names - {""}:
            operation -= 3.0
        # the whole expression tells chains of equal calls apart
        same_expression = old.step.expression == new.step.expression
        skeleton = 1.5 if old.skeleton == new.skeleton else 0.0
        text = max(2.0 * common, skeleton) + 1.5 * same_expression
        return max(operation + 3.0 * same_names + 2.0 * same_signatures + text + 3.0 * neighbours, 0.0)

    def _have_other_names(self, old: tuple[str | None, ...], new: tuple[str | None, ...]) -> bool:
        """Return whether the outputs' names differ and both sides have all of them: then neither was renamed."""
        return old != new and bool(old) and bool(new) and self._names - {None} >= {*old, *new}


def _common_tokens(old: _Features, new: _Features) -> float:
    if old.own_text == new.own_text:
        return 1.0
    shared = sum((old.token_counts & new.token_counts).values())
    return 2 * shared / max(1, len(old.tokens) + len(new.tokens))


class _Side:
    """One outline's steps by the composite that they lie in, and the steps that read each."""

    def __init__(self, outline: Outline) -> None:
        self.steps: list[_Features] = []
        self.inner: dict[int | None, list[_Features]] = {}
        self.readers: dict[int, list[int]] = {}
        for step in outline.steps:
            self.steps.append(_Features(step, outline.own_text(step)))
            self.inner.setdefault(step.parent, []).append(self.steps[-1])
            for reference in step.uses:
                if reference.step is not None:
                    self.readers.setdefault(reference.step, []).append(step.index)

    def all_inside(self, parent: int) -> Iterator[OutlineStep]:
        for features in self.inner.get(parent, []):
            yield features.step
            yield from self.all_inside(features.step.index)


class _Neighbours:
    """Compares two steps' operands and readers through an alignment."""

    def __init__(self, old: _Side, new: _Side, to_new: Mapping[int, int], inputs: Mapping[str, str]) -> None:
        self._old, self._new = old, new
        self._to_new, self._inputs = to_new, inputs

    def share(self, old: OutlineStep, new: OutlineStep) -> float:
        """Return the share of neighbours that correspond, from 0 to 1; operands count twice as much as readers."""
        operands = _shared([self._on_new_side(one) for one in old.uses], list(new.uses))
        readers = [self._to_new.get(one) for one in self._old.readers.get(old.index, ())]
        return (2 * operands + _shared(readers, self._new.readers.get(new.index, ()))) / 3

    def _on_new_side(self, reference: Reference) -> Reference | None:
        if reference.step is None:
            name = self._inputs.get(reference.input or "")
            return Reference(input=name) if name is not None else None
        step = self._to_new.get(reference.step)
        return Reference(step=step, output=reference.output) if step is not None else None


def _shared(old: Sequence[object], new: Sequence[object]) -> float:
    common = Counter(one for one in old if one is not None) & Counter(new)
    return sum(common.values()) / max(1, len(old), len(new))


# the alignment


def _aligned(old: _Side, new: _Side, into: Alignment, score: _Score) -> Alignment:
    moved: set[int] = set()
    rows: list[Match] = []

    def align_inside(old_parent: int | None, new_parent: int | None) -> None:
        before, after = old.inner.get(old_parent, []), new.inner.get(new_parent, [])
        for one, other in _with_moved(list(_in_order(before, after, score)), moved):
            rows.append((one, other))
            if one is not None and other is not None:
                into.to_new[one.index] = other.index
                align_inside(one.index, other.index)
            elif one is not None:
                rows.extend((inner, None) for inner in old.all_inside(one.index))
            elif other is not None:
                rows.extend((None, inner) for inner in new.all_inside(other.index))

    # this ends, since an outline numbers a composite before its inner steps
    align_inside(None, None)
    into.steps, into.moved = tuple(rows), frozenset(moved)
    return into


def _with_moved(matches: list[_FeaturesMatch], moved: set[int]) -> Iterator[Match]:
    """Yield the matches, with each removed step moved to the added step that is identical."""
    removed: dict[object, list[int]] = {}
    for place, (one, other) in enumerate(matches):
        if one is not None and other is None:
            removed.setdefault((one.key, one.step.expression), []).append(place)
    origin: dict[int, int] = {}
    for place, (one, other) in enumerate(matches):
        if one is None and other is not None and (places := removed.get((other.key, other.step.expression))):
            origin[place] = places.pop(0)
            moved.add(other.step.index)
    gone = set(origin.values())
    for place, (one, other) in enumerate(matches):
        one = matches[origin[place]][0] if place in origin else one
        if place not in gone:
            yield one.step if one is not None else None, other.step if other is not None else None


def _in_order(old: Sequence[_Features], new: Sequence[_Features], score: _Score) -> Iterator[_FeaturesMatch]:
    """Yield the best alignment that keeps both orders; unedited steps at both ends are aligned without scoring."""
    start = 0
    while start < min(len(old), len(new)) and old[start].key == new[start].key:
        yield old[start], new[start]
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end].key == new[-1 - end].key:
        end += 1
    yield from _between(old[start : len(old) - end], new[start : len(new) - end], score, _SAMENESS)
    yield from zip(old[len(old) - end :], new[len(new) - end :], strict=True)


def _between(
    old: Sequence[_Features],
    new: Sequence[_Features],
    score: _Score,
    keys: Sequence[Callable[[_Features], object]],
) -> Iterator[_FeaturesMatch]:
    if len(old) * len(new) <= _MOST_PAIRS:
        yield from _best(old, new, score)
        return
    if not keys:
        yield from ((one, None) for one in old)
        yield from ((None, one) for one in new)
        return
    key, *other_keys = keys
    matcher = difflib.SequenceMatcher(None, list(map(key, old)), list(map(key, new)), autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(old[a:b], new[c:d], strict=True)
        else:
            yield from _between(old[a:b], new[c:d], score, other_keys)


def _best(old: Sequence[_Features], new: Sequence[_Features], score: _Score) -> Iterator[_FeaturesMatch]:
    """Yield the alignment of the highest total score; ties are broken without regard to which side is which.

    `best[i][j]` is the total of the steps from `i` and from `j` on.
    """
    scores = [[score(one, other) for other in new] for one in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            skipped = max(best[i + 1][j], best[i][j + 1])
            best[i][j] = max(skipped, scores[i][j] + best[i + 1][j + 1]) if scores[i][j] else skipped
    i = j = 0
    added: list[_FeaturesMatch] = []
    while i < len(old) or j < len(new):
        both = i < len(old) and j < len(new)
        if both and scores[i][j] and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
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
