"""Compares two outlines: aligns their steps, and says what differs of each."""

from __future__ import annotations

from itertools import zip_longest

from attnshape.comparing import numbers
from attnshape.comparing.align import Alignment, Match, align
from attnshape.comparing.difference import (
    Difference,
    OutputChange,
    Side,
    SizeChange,
    StepChange,
    StepFact,
)
from attnshape.comparing.facts import changed, kinds
from attnshape.comparing.kinds import KINDS, Kind
from attnshape.comparing.origins import Origins
from attnshape.comparing.outline import Outline, OutlineStep
from attnshape.comparing.renames import Renames
from attnshape.comparing.results import changed_results


def compare(old: Outline, new: Outline) -> Difference:
    """Return what differs between two outlines; nothing does between those of two runs of the same code."""
    alignment = align(old, new)
    renames = Renames.between(old, new, (*alignment.inputs, *alignment.steps))
    comparison = _Comparison(old, new, alignment, Origins(old, new, alignment), renames)
    inputs = tuple(map(comparison.of, alignment.inputs))
    steps = tuple(map(comparison.of, alignment.steps))
    letters = sorted(old.sizes.keys() | new.sizes.keys(), key=lambda one: _place(one, old, new))
    sizes = [SizeChange(letter, old.sizes.get(letter), new.sizes.get(letter)) for letter in letters]
    sizes = [one for one in sizes if one.old != one.new]
    found: set[Kind] = {kind for one in (*inputs, *steps) for kind in one.kinds}
    # a letter that only one side has comes with an input or an axis, which is told there
    if any(one.old is not None and one.new is not None for one in sizes):
        found.add("size")
    results = changed_results(old, new, alignment)
    if results or not renames.same_text(old.failure or "", new.failure or ""):
        found.add("steps")
    return Difference(
        old=Side(old.target, old.totals, old.sizes, old.failure),
        new=Side(new.target, new.totals, new.sizes, new.failure),
        kinds=tuple(kind for kind in KINDS if kind in found),
        sizes=tuple(sizes),
        renamed=renames.listed,
        inputs=inputs,
        steps=steps,
        results=results,
    )


def _place(letter: str, old: Outline, new: Outline) -> tuple[int, str]:
    order = [*new.sizes, *old.sizes]
    return order.index(letter), letter


class _Comparison:
    """What two aligned steps are compared by."""

    def __init__(self, old: Outline, new: Outline, alignment: Alignment, origins: Origins, renames: Renames) -> None:
        self._old, self._new = old, new
        self._alignment = alignment
        self._origins = origins
        self._renames = renames

    def of(self, match: Match) -> StepChange:
        """Return what differs of a match."""
        old, new = match
        if old is None or new is None:
            return StepChange(old=old, new=new, kinds=("steps",))
        facts = self._facts(old, new)
        sizes = self._old.sizes, self._new.sizes
        outputs = tuple(
            OutputChange(one, other, changed(one, other, self._origins, sizes))
            if one is not None and other is not None
            else OutputChange(one, other)
            for one, other in zip_longest(old.outputs, new.outputs)
        )
        found = {kind for output in outputs for kind in kinds(output.changed)}
        if set(facts) - {"expression", "operands"}:
            found.add("steps")
        counted = tuple(kind for kind in KINDS if kind in found)
        return StepChange(old=old, new=new, changed=facts, outputs=outputs, kinds=counted)

    def _facts(self, old: OutlineStep, new: OutlineStep) -> tuple[StepFact, ...]:
        texts = self._old.own_text(old), self._new.own_text(new)
        rewritten = not self._renames.same_text(*texts)
        found: dict[StepFact, bool] = {
            "operation": old.operation != new.operation,
            "expression": rewritten,
            "numbers": rewritten
            and self._renames.same_text(*map(numbers.masked, texts))
            and numbers.others((old, texts[0]), (new, texts[1])),
            "uses": not self._same_uses(old, new),
            "operands": self._same_uses(old, new) and self._reads_part(old, new),
            "turns": [turn.expression for turn in old.turns] != [turn.expression for turn in new.turns],
            "moved": new.index in self._alignment.moved,
            "outputs": len(old.outputs) != len(new.outputs),
        }
        return tuple(fact for fact, differs in found.items() if differs)

    def _same_uses(self, old: OutlineStep, new: OutlineStep) -> bool:
        if len(old.uses) != len(new.uses):
            return False
        return all(self._origins.same(one, other) for one, other in zip(old.uses, new.uses, strict=True))

    def _reads_part(self, old: OutlineStep, new: OutlineStep) -> bool:
        """Say whether a step reads, under another name, only some of what was made into one, or the other way round."""
        whole = all(self._origins.whole(one, other) for one, other in zip(old.uses, new.uses, strict=True))
        return not whole and not self._renames.same_text(old.expression, new.expression)
