"""Checks every signature of a trace: the source's own annotations and the inferred ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from attnshape.checking.signatures import bound, holds
from attnshape.model import NamedTensor, Step, TensorRecord
from attnshape.tracing.raw import RawTrace


@dataclass(frozen=True)
class Checked:
    """Inputs and steps with what was checked, and the annotations that don't hold."""

    inputs: tuple[NamedTensor, ...]
    steps: tuple[Step, ...]
    wrong: tuple[str, ...]


def check_steps(
    inputs: Sequence[NamedTensor],
    steps: Sequence[Step],
    actual: RawTrace,
    small: Sequence[tuple[Mapping[str, int], RawTrace]],
    numbers: Mapping[str, int],
) -> Checked:
    """Check each tensor's signatures at the user's sizes, and annotations in the small runs too.

    `small` holds the small runs with their sizes: sizes that the user made equal differ there, so an annotation that
    holds by luck doesn't hold in them.
    """
    declared = {
        (position, place): output.name and step.place.declared
        for position, step in enumerate(actual.steps)
        if step.place is not None and step.place.declared
        for place, output in enumerate(step.outputs)
    }
    wrong = _wrong_annotations(declared, actual, small, numbers)
    with bound(numbers):
        checked_inputs = tuple(NamedTensor(named.name, _inferred(named.tensor)) for named in inputs)
        checked_steps = tuple(
            msgspec.structs.replace(
                step,
                outputs=tuple(
                    NamedTensor(
                        output.name,
                        _inferred(output.tensor)
                        if not (dims := declared.get((position, place)))
                        else msgspec.structs.replace(
                            output.tensor, declared=dims, checked=None if (position, place) in wrong else "declared"
                        ),
                    )
                    for place, output in enumerate(step.outputs)
                ),
            )
            for position, step in enumerate(steps)
        )
    messages = tuple(
        f"wrong annotation: {_where(steps[position])} is annotated {declared[position, place]!r}, but is "
        f"{steps[position].outputs[place].tensor.signature!r}"
        for position, place in sorted(wrong)
    )
    return Checked(checked_inputs, checked_steps, messages)


def _inferred(tensor: TensorRecord) -> TensorRecord:
    return msgspec.structs.replace(
        tensor, checked="inferred" if holds(tensor.signature, tensor.shape, tensor.dtype) else None
    )


def _wrong_annotations(
    declared: Mapping[tuple[int, int], str | None],
    actual: RawTrace,
    small: Sequence[tuple[Mapping[str, int], RawTrace]],
    numbers: Mapping[str, int],
) -> set[tuple[int, int]]:
    """Return which annotations don't hold: letters that are no size symbols bind where they first occur in a function."""
    wrong: set[tuple[int, int]] = set()
    for sizes, run in [(numbers, actual), *small]:
        functions: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for position, place in declared:
            step_place = run.steps[position].place if position < len(run.steps) else None
            if step_place is not None:
                functions.setdefault((step_place.file, step_place.function), []).append((position, place))
        for places in functions.values():
            with bound(sizes):
                for position, place in places:
                    tensor = run.steps[position].outputs[place].tensor
                    dims = declared[position, place]
                    if dims and not holds(dims, tensor.shape, tensor.dtype):
                        wrong.add((position, place))
    return wrong


def _where(step: Step) -> str:
    name = step.outputs[0].name
    return f"{step.source.file}:{step.source.line} {name}" if step.source else str(name)
