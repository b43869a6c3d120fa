"""Verifies what the user expects: a variable's name, or `output`, and the signature that it must have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attnshape import axis
from attnshape.checking.signatures import bound, holds
from attnshape.checking.steps import Runs
from attnshape.errors import AttnshapeError
from attnshape.hints import nearest
from attnshape.model import Expectation, Reference
from attnshape.signature import parse_named
from attnshape.tracing.raw import RawTensor, RawTrace

OUTPUT = "output"
_RETURNED = re.compile(r"return\[(\d+)\]")
"""The tensor that the target returned in that place, from 0, and nothing else: no variable can be called so."""


@dataclass(frozen=True)
class Expected:
    """One `--expect` as typed."""

    name: str
    signature: str
    kind: str | None = None
    """jaxtyping's type, such as `Float`, where that is declared too."""


def declared_result(declared: tuple[str, str] | None, letters: Collection[str]) -> tuple[Expected, ...]:
    """Return what the target's own return annotation promises, where all its letters are sizes of the target."""
    if declared is None:
        return ()
    kind, signature = declared
    words = re.findall(r"[^\W\d]\w*", signature)
    plain = not set(signature) & set("#*.?=")
    return (Expected(OUTPUT, signature, kind),) if plain and all(word in letters for word in words) else ()


def parse_expectations(texts: Sequence[str], letters: Sequence[str]) -> tuple[Expected, ...]:
    """Parse each `--expect`. Raises AttnshapeError where one has no name or an unknown symbol."""
    expected = []
    for text in texts:
        name, signature = parse_named("--expect", text)
        for word in signature.split():
            for symbol in axis.parse(word).symbols:
                if symbol not in letters:
                    raise AttnshapeError(
                        f"--expect {text!r}: {symbol} isn't a size of this target",
                        nearest(symbol, list(letters), "its sizes are"),
                    )
        expected.append(Expected(name, signature))
    return tuple(expected)


def verify(expected: Sequence[Expected], runs: Runs) -> tuple[Expectation, ...]:
    """Return the verdict on each: it holds where every tensor of that name has the signature, in every run.

    The first run is the user's. In the others every size is another number, so that axes of equal size aren't told
    apart by luck. Raises AttnshapeError where no tensor has the name.
    """
    return tuple(_verdict(wanted, runs) for wanted in expected)


def _verdict(wanted: Expected, runs: Runs) -> Expectation:
    actual = runs[0][1]
    if not tensors_named(wanted.name, actual):
        if actual.failure is not None:
            return Expectation(wanted.name, wanted.signature, False, "the code failed before it was made")
        if _RETURNED.fullmatch(wanted.name):
            return Expectation(wanted.name, wanted.signature, False, "nothing is returned there")
        raise AttnshapeError(
            f"--expect {wanted.name!r}: no tensor has that name",
            nearest(wanted.name, names_of(actual), "the tensors with names are"),
        )
    for place, (sizes, run) in enumerate(runs):
        for tensor in tensors_named(wanted.name, run):
            with bound(sizes):
                if not holds(wanted.signature, tensor.shape, tensor.dtype, wanted.kind):
                    why = _difference(wanted.signature, tensor, sizes)
                    return Expectation(wanted.name, wanted.signature, False, why + (_at(sizes) if place else ""))
    return Expectation(wanted.name, wanted.signature, True, None if len(runs) > 1 else "at this run's sizes only")


def _at(sizes: Mapping[str, int]) -> str:
    return " (seen at " + ", ".join(f"{letter}={size}" for letter, size in sizes.items()) + ")"


def _difference(signature: str, tensor: RawTensor, sizes: Mapping[str, int]) -> str:
    words = signature.split()
    if len(words) != len(tensor.shape):
        return f"it has {len(tensor.shape)} axes {list(tensor.shape)}, expected {len(words)}"
    for position, (word, size) in enumerate(zip(words, tensor.shape, strict=True)):
        number = axis.parse(word).evaluate(sizes)
        if number != size:
            equal = [letter for letter, value in sizes.items() if value == size]
            name = f"{equal[0]}={size}" if len(equal) == 1 else str(size)
            return f"axis {position} is {name}, expected {word}={number}"
    return f"its dtype is {tensor.dtype}"


def tensors_named(name: str, run: RawTrace) -> list[RawTensor]:
    """Return the run's tensors of a name; for `output` what the target returned, the first of several."""
    if returned_at := _RETURNED.fullmatch(name):
        references = [reference for _, reference in run.returned][int(returned_at[1]) :][:1]
        return [tensor for one in references if (tensor := tensor_of(one, run)) is not None]
    found = [output.tensor for step in run.steps for output in step.outputs if output.name == name]
    found += [tensor for given, tensor in run.inputs if given == name]
    returned = dict(run.returned)
    reference = returned.get(name)
    if reference is None and name == OUTPUT and run.returned:
        reference = run.returned[0][1]
    made = tensor_of(reference, run) if reference is not None else None
    if made is not None and all(made is not other for other in found):
        found.append(made)
    return found


def tensor_of(reference: Reference, run: RawTrace) -> RawTensor | None:
    """Return the tensor that a reference means, where it is a step's output or an input."""
    if reference.step is not None:
        return run.steps[reference.step - 1].outputs[reference.output].tensor
    return next((tensor for name, tensor in run.inputs if name == reference.input), None)


def names_of(run: RawTrace) -> list[str]:
    """Return every name that an expectation could mean."""
    names = [output.name for step in run.steps for output in step.outputs if output.name]
    return list(dict.fromkeys([OUTPUT, *(name for name, _ in run.returned), *names]))
