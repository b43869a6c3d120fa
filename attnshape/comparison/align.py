"""Aligns the steps of two outlines: which old step corresponds to which new one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from attnshape.comparison.outline import Outline
from attnshape.comparison.subsequence import common_subsequence
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


@dataclass(frozen=True)
class Alignment:
    """The steps of both sides in one order, and the new counterparts of old steps and inputs."""

    inputs: tuple[Match, ...] = ()
    steps: tuple[Match, ...] = ()
    moved: frozenset[int] = frozenset()
    """The new numbers of the steps that moved."""
    to_new: Mapping[int, int] = field(default_factory=dict)
    """The new number of each old step that is still there."""
    inputs_to_new: Mapping[str, str] = field(default_factory=dict)

    def on_new_side(self, old: Reference) -> Reference | None:
        """Return an old reference as the new side's; None if its step is gone."""
        if old.step is not None:
            step = self.to_new.get(old.step)
            return Reference(step=step, output=old.output) if step is not None else None
        return Reference(input=self.inputs_to_new.get(old.input, old.input)) if old.input is not None else old


def align(old: Outline, new: Outline) -> Alignment:
    """Return how two outlines correspond; the result is deterministic.

    Steps are aligned first by what they are, then again by their neighbours in the data flow too, until nothing
    changes. The inner steps of a composite are aligned with those of its counterpart.
    """
    sides = [_Side(_Features(step, step.expression) for step in side.inputs) for side in (old, new)]
    inputs = _aligned(sides, Alignment()).steps
    names = {a.outputs[0].name or "": b.outputs[0].name or "" for a, b in inputs if a is not None and b is not None}
    sides = [_Side(_Features(step, side.text_without_operands(step)) for step in side.steps) for side in (old, new)]
    best = Alignment(inputs, inputs_to_new=names)
    for _ in range(_ROUNDS):
        before, best = best, _aligned(sides, best)
        if best.to_new == before.to_new:
            break
    return best


class _Features:
    def __init__(self, step: OutlineStep, text_without_operands: str) -> None:
        """`text_without_operands` is the step's expression without its operands."""
        self.step, self.text_without_operands = step, text_without_operands
        self.base = base_name(step.operation)
        self.names = tuple(output.name for output in step.outputs)
        self.signatures = tuple(output.signature for output in step.outputs)
        # the name that the expression begins with, such as a module's
        self.first_name = match[0] if (match := _WORD.match(text_without_operands)) else ""
        # equal for steps that weren't edited
        self.key = (step.operation, text_without_operands, self.names, self.signatures, len(step.uses))
        # doesn't depend on the steps' positions
        self.order = (step.expression, step.operation, *(name or "" for name in self.names), *self.signatures)

    @cached_property
    def tokens(self) -> Counter[str]:
        return Counter(_TOKEN.findall(self.text_without_operands))

    @cached_property
    def skeleton(self) -> list[str]:
        """The tokens with `_` in place of names, except the names of functions."""
        tokens = _TOKEN.findall(self.text_without_operands)
        pairs = zip(tokens, [*tokens[1:], ""], strict=False)
        return ["_" if _WORD.fullmatch(token) and following != "(" else token for token, following in pairs]


_FeaturesMatch = tuple[_Features | None, _Features | None]
_Score = Callable[[_Features, _Features], float]
_SAMENESS: tuple[Callable[[_Features], object], ...] = (lambda one: one.key, lambda one: (one.base, one.signatures))
"""The keys by which very many steps are aligned first: unedited ones, then those of one kind."""


class _Side:
    """One outline's steps by the composite that they lie in, and the steps that read each."""

    def __init__(self, steps: Iterable[_Features]) -> None:
        self.steps = list(steps)
        self.inner: dict[int | None, list[_Features]] = {}
        self.readers: dict[int, list[int]] = {}
        for features in self.steps:
            self.inner.setdefault(features.step.parent, []).append(features)
            for reference in features.step.uses:
                if reference.step is not None:
                    self.readers.setdefault(reference.step, []).append(features.step.index)

    def all_inside(self, parent: int) -> Iterator[OutlineStep]:
        for features in self.inner.get(parent, []):
            yield features.step
            yield from self.all_inside(features.step.index)


class _Similarity:
    """Scores how similar the steps of two outlines are, with their neighbours as an alignment has them."""

    def __init__(self, old: _Side, new: _Side, alignment: Alignment) -> None:
        self._old, self._new, self._alignment = old, new, alignment
        old_names, new_names = ({name for step in side.steps for name in step.names} for side in (old, new))
        self._names = old_names & new_names - {None}
        old_words, new_words = ({step.first_name for step in side.steps} for side in (old, new))
        self._first_names = old_words & new_words - {""}

    def score(self, old: _Features, new: _Features) -> float:
        """Return how similar two steps are; 0 if they don't correspond."""
        same_names = old.names == new.names and any(old.names)
        same_signatures = old.signatures == new.signatures
        # both sides have all of these names, so that neither was renamed
        if old.names != new.names and old.names and new.names and self._names >= {*old.names, *new.names}:
            return 0.0
        shared, tokens = (old.tokens & new.tokens).total(), old.tokens.total() + new.tokens.total()
        common = 1.0 if old.text_without_operands == new.text_without_operands else 2 * shared / max(1, tokens)
        if old.base == new.base:
            if not (same_names or same_signatures or common >= _EDITED):
                return 0.0
            operation = 4.0
        elif any(old.base in family and new.base in family for family in FAMILIES):
            if not (same_names or same_signatures):
                return 0.0
            operation = 2.5
        elif same_names and same_signatures:
            # code reuses a name for different things, so its signature must agree too
            operation = 0.0
        else:
            return 0.0
        if old.first_name != new.first_name and {old.first_name, new.first_name} <= self._first_names:
            operation -= 3.0
        # the whole expression tells chains of equal calls apart
        same_expression = old.step.expression == new.step.expression
        text = max(2.0 * common, 1.5 * (old.skeleton == new.skeleton)) + 1.5 * same_expression
        neighbours = self._neighbours(old.step, new.step)
        return max(operation + 3.0 * same_names + 2.0 * same_signatures + text + 3.0 * neighbours, 0.0)

    def _neighbours(self, old: OutlineStep, new: OutlineStep) -> float:
        """Return the share of neighbours that correspond, from 0 to 1; operands count twice as much as readers."""
        alignment = self._alignment
        operands = [
            alignment.on_new_side(use) if use.input is None or use.input in alignment.inputs_to_new else None
            for use in old.uses
        ]
        readers = [alignment.to_new.get(reader) for reader in self._old.readers.get(old.index, ())]
        return (2 * _shared(operands, new.uses) + _shared(readers, self._new.readers.get(new.index, ()))) / 3


def _shared(old: Sequence[object], new: Sequence[object]) -> float:
    common = Counter(neighbour for neighbour in old if neighbour is not None) & Counter(new)
    return common.total() / max(1, len(old), len(new))


def _aligned(sides: Sequence[_Side], before: Alignment) -> Alignment:
    """Return the alignment of the best score, where `before` says which neighbours correspond."""
    old, new = sides
    score = _Similarity(old, new, before).score
    rows: list[Match] = []
    moved: set[int] = set()
    to_new: dict[int, int] = {}

    def align_inside(old_parent: int | None, new_parent: int | None) -> None:
        matches = list(_in_order(old.inner.get(old_parent, []), new.inner.get(new_parent, []), score))
        for one, other in _with_moved(matches, moved):
            rows.append((one, other))
            if one is not None and other is not None:
                to_new[one.index] = other.index
                align_inside(one.index, other.index)
            elif one is not None:
                rows.extend((inner, None) for inner in old.all_inside(one.index))
            elif other is not None:
                rows.extend((None, inner) for inner in new.all_inside(other.index))

    # this ends, since an outline numbers a composite before its inner steps
    align_inside(None, None)
    return Alignment(before.inputs, tuple(rows), frozenset(moved), to_new, before.inputs_to_new)


def _with_moved(matches: list[_FeaturesMatch], moved: set[int]) -> Iterator[Match]:
    """Yield the matches, with each removed step moved to the added step that is identical."""
    removed: dict[object, list[_Features]] = {}
    for one, other in matches:
        if one is not None and other is None:
            removed.setdefault((one.key, one.step.expression), []).append(one)
    gone: set[_Features] = set()
    rows: list[_FeaturesMatch] = []
    for one, other in matches:
        if one is None and other is not None and (steps := removed.get((other.key, other.step.expression))):
            one = steps.pop(0)
            gone.add(one)
            moved.add(other.step.index)
        rows.append((one, other))
    for one, other in rows:
        if other is not None or one not in gone:
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
    old: Sequence[_Features], new: Sequence[_Features], score: _Score, keys: Sequence[Callable[[_Features], object]]
) -> Iterator[_FeaturesMatch]:
    if len(old) * len(new) <= _MOST_PAIRS:
        yield from _best(old, new, score)
        return
    if not keys:
        yield from ((one, None) for one in old)
        yield from ((None, one) for one in new)
        return
    key, *other_keys = keys
    i = j = 0
    for a, b in [*common_subsequence(list(map(key, old)), list(map(key, new))), (len(old), len(new))]:
        yield from _between(old[i:a], new[j:b], score, other_keys)
        yield from zip(old[a : a + 1], new[b : b + 1], strict=True)
        i, j = a + 1, b + 1


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
