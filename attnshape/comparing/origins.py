"""Which tensors of two outlines are the same one, as far as steps that came or went let it be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attnshape.comparing.align import Alignment
from attnshape.comparing.outline import Outline, OutlineStep, Tensor
from attnshape.model import Reference

Origin = tuple[str, object, int]


class Origins:
    """Traces references of both sides back to what both sides have.

    What an inserted step reads stands for what it makes: a view of its result is a view in place of the one before.
    """

    def __init__(self, old: Outline, new: Outline, alignment: Alignment) -> None:
        self._old = {step.index: step for step in old.steps}
        self._new = {step.index: step for step in new.steps}
        self._alignment = alignment
        self._gone = _parameters(old) - _parameters(new)
        self._come = _parameters(new) - _parameters(old)

    def same(self, old: Reference | None, new: Reference | None) -> bool:
        """Say whether two references mean the same tensor, or one that a step made of it that only one side has."""
        if old is None or new is None:
            return old is new
        if old.parameter is not None and new.parameter is not None:
            # a parameter that only has another name
            return old.parameter == new.parameter or (old.parameter in self._gone and new.parameter in self._come)
        mine, theirs = self._both(old, new)
        return bool(mine & theirs) or mine == theirs

    def whole(self, old: Reference, new: Reference) -> bool:
        """Say whether two references come from all the same: not from a sum of two, and from one of these."""
        mine, theirs = self._both(old, new)
        return mine == theirs

    def _both(self, old: Reference, new: Reference) -> tuple[set[Origin], set[Origin]]:
        return set(self._old_origins(old, set())), set(self._new_origins(new, set()))

    def _old_origins(self, reference: Reference, seen: set[int]) -> Iterator[Origin]:
        step = reference.step
        if step is None:
            name = self._alignment.inputs_to_new.get(reference.input or "", reference.input or "")
            yield _outside(reference, name)
        elif step in self._alignment.to_new:
            yield ("step", self._alignment.to_new[step], reference.output)
        else:
            yield from self._behind(self._old, step, seen, self._old_origins)

    def _new_origins(self, reference: Reference, seen: set[int]) -> Iterator[Origin]:
        step = reference.step
        if step is None:
            yield _outside(reference, reference.input or "")
        elif step in self._alignment.to_old:
            yield ("step", step, reference.output)
        else:
            yield from self._behind(self._new, step, seen, self._new_origins)

    @staticmethod
    def _behind(steps: Mapping[int, OutlineStep], index: int, seen: set[int], follow: object) -> Iterator[Origin]:
        if index in seen or index not in steps:
            return
        seen.add(index)
        for reference in steps[index].uses:
            yield from follow(reference, seen)  # type: ignore[operator]


def _outside(reference: Reference, name: str) -> Origin:
    if reference.input is not None:
        return ("input", name, 0)
    return ("parameter", reference.parameter, 0) if reference.parameter is not None else ("constant", "", 0)


def _tensors(outline: Outline) -> Iterator[Tensor]:
    for step in (*outline.inputs, *outline.steps):
        yield from step.outputs


def _parameters(outline: Outline) -> set[str]:
    return {one.of.parameter for one in _tensors(outline) if one.of is not None and one.of.parameter is not None}
