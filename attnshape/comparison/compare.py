"""Compares two outlines: aligns their steps and states what differs in each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from attnshape.comparison.align import Alignment, Match, align
from attnshape.comparison.outline import UNEXPLAINED, Outline
from attnshape.dims.expressions import parse_expression
from attnshape.errors import AttnshapeError
from attnshape.model.difference import (
    KINDS,
    Difference,
    Fact,
    Kind,
    OutlineResult,
    OutlineStep,
    OutlineTensor,
    OutputChange,
    Rename,
    ResultChange,
    Side,
    SizeChange,
    StepChange,
    StepFact,
)
from attnshape.model.trace import Reference
from attnshape.tracing.operations import EXPANSIONS, PATTERNED_LAYOUT, RESHAPES, TRANSPOSES, UNIT_AXES, base_name

_CONSTANTS = frozenset({"True", "False", "None"})
_WORD = re.compile(r"[^\W\d]\w*")
_CALLED = re.compile(r"([^\W\d]\w*)\(")
_TOKEN = re.compile(r"\w+|\S")


class Renames:
    """The one-to-one renames between two outlines."""

    def __init__(self, pairs: Sequence[tuple[str, str]], words: Mapping[str, str]) -> None:
        self._pairs = pairs
        self._words = words

    @staticmethod
    def between(old: Outline, new: Outline, matches: Sequence[Match]) -> Renames:
        """Return the renames that aligned steps show.

        A word was renamed if only the old side has it, only the new side has the word in its place, and the two
        always replace each other.
        """
        old_words, new_words = set(_words_of(old)), set(_words_of(new))
        forward: dict[str, set[str]] = {}
        backward: dict[str, set[str]] = {}
        called = _called_operations(old) | _called_operations(new)
        for one, other in _corresponding_words(matches):
            # calling another function does something else
            if one != other and not {one, other} & called:
                forward.setdefault(one, set()).add(other)
                backward.setdefault(other, set()).add(one)
        words = {
            one: other
            for one, others in forward.items()
            for other in others
            if len(others) == len(backward[other]) == 1 and one not in new_words and other not in old_words
        }
        names = [(one, other) for one, other in _corresponding_names(matches) if one != other]
        listed = {word for pair in names for text in pair for word in _WORD.findall(text)}
        others = [pair for pair in words.items() if not listed & set(pair)]
        return Renames(list(dict.fromkeys([*names, *others])), words)

    @property
    def listed(self) -> tuple[Rename, ...]:
        """Each rename once, in order of appearance."""
        return tuple(Rename(one, other) for one, other in self._pairs)

    def same_text(self, old: str, new: str) -> bool:
        """Return whether two texts are equal apart from renames and whitespace."""
        return [self._words.get(one, one) for one in _TOKEN.findall(old)] == _TOKEN.findall(new)


def _called_operations(outline: Outline) -> set[str]:
    """Return the names of the steps' operations that are called in expressions; these aren't variables."""
    operations = {step.operation for step in outline.steps}
    return {word for step in outline.steps for word in _CALLED.findall(step.expression) if word in operations}


def _corresponding_names(matches: Sequence[Match]) -> Iterator[tuple[str, str]]:
    for old, new in matches:
        if old is not None and new is not None and len(old.outputs) == len(new.outputs):
            for one, other in zip(old.outputs, new.outputs, strict=True):
                if one.name is not None and other.name is not None:
                    yield one.name, other.name


def _corresponding_words(matches: Sequence[Match]) -> Iterator[tuple[str, str]]:
    for one, other in _corresponding_names(matches):
        yield from _words_in_same_places(one, other)
    for old, new in matches:
        if old is not None and new is not None and old.operation == new.operation:
            yield from _words_in_same_places(old.expression, new.expression)


def _words_in_same_places(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield the words in the same places of two texts that are equal apart from their words."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        if all(one == other or (_WORD.fullmatch(one) and _WORD.fullmatch(other)) for one, other in pairs):
            yield from (pair for pair in pairs if _WORD.fullmatch(pair[0]) and not _CONSTANTS & set(pair))


def _words_of(outline: Outline) -> Iterator[str]:
    for step in (*outline.inputs, *outline.steps):
        yield from _WORD.findall(step.expression)
        for output in step.outputs:
            yield from _WORD.findall(output.name or "")


Origin = tuple[str, object, int]


class Origins:
    """Traces references of both sides back to tensors that both sides have.

    An inserted step passes on what it reads: a view of its result counts as a view of the tensor that it read.
    """

    def __init__(self, old: Outline, new: Outline, alignment: Alignment) -> None:
        self._alignment = alignment
        self._old, self._new = ({step.index: step for step in side.steps} for side in (old, new))
        self._kept = {index: index for index in alignment.to_new.values()}
        old_parameters, new_parameters = _parameters(old), _parameters(new)
        self._only_old = old_parameters - new_parameters
        self._only_new = new_parameters - old_parameters

    def same(self, old: Reference | None, new: Reference | None) -> bool:
        """Return whether two references mean the same tensor, or one computed from it by a step of one side only."""
        if old is None or new is None:
            return old is new
        if old.parameter is not None and new.parameter is not None:
            renamed = old.parameter in self._only_old and new.parameter in self._only_new
            return old.parameter == new.parameter or renamed
        old_origins, new_origins = self._origins(old, new)
        return bool(old_origins & new_origins) or old_origins == new_origins

    def fully_same(self, old: Reference, new: Reference) -> bool:
        """Return whether two references have all their origins in common: a sum isn't one of its terms."""
        old_origins, new_origins = self._origins(old, new)
        return old_origins == new_origins

    def _origins(self, old: Reference, new: Reference) -> tuple[set[Origin], set[Origin]]:
        alignment = self._alignment
        return (
            set(_trace_back(old, self._old, alignment.to_new, alignment.inputs_to_new, set())),
            set(_trace_back(new, self._new, self._kept, {}, set())),
        )


def _trace_back(
    reference: Reference,
    steps: Mapping[int, OutlineStep],
    to_new: Mapping[int, int],
    inputs_to_new: Mapping[str, str],
    visited: set[int],
) -> Iterator[Origin]:
    """Yield the inputs, parameters and outputs of common steps that a reference comes from, as the new side's."""
    index = reference.step
    if index is None:
        if reference.input is not None:
            yield "input", inputs_to_new.get(reference.input, reference.input), 0
        else:
            yield ("parameter", reference.parameter, 0) if reference.parameter is not None else ("constant", "", 0)
    elif index in to_new:
        yield "step", to_new[index], reference.output
    elif index in steps and index not in visited:
        visited.add(index)
        for operand in steps[index].uses:
            yield from _trace_back(operand, steps, to_new, inputs_to_new, visited)


def _parameters(outline: Outline) -> set[str]:
    outputs = (output for step in (*outline.inputs, *outline.steps) for output in step.outputs)
    return {one.of.parameter for one in outputs if one.of is not None and one.of.parameter is not None}


Sizes = Mapping[str, int]

_KIND_OF: dict[Fact, Kind] = {
    "signature": "signature",
    "shape": "size",
    "stride": "stride",
    "storage": "storage",
    "dtype": "dtype",
}
"""The kind that each fact counts as. Bytes only follow from other facts."""
_NUMBER = re.compile(r"(?<![\w.)\]])-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_NUMBERS_SEEN_IN_RESULT = RESHAPES | PATTERNED_LAYOUT | UNIT_AXES | EXPANSIONS | TRANSPOSES
"""Operations whose numbers only affect the result's shape, strides and storage, which are compared themselves."""


def compare(old: Outline, new: Outline) -> Difference:
    """Return the difference of two outlines; there is none between two runs of the same code."""
    alignment = align(old, new)
    comparison = _Comparison(old, new, alignment)
    inputs = tuple(map(comparison.step_change, alignment.inputs))
    steps = tuple(map(comparison.step_change, alignment.steps))
    sizes = [SizeChange(one, old.sizes.get(one), new.sizes.get(one)) for one in {**new.sizes, **old.sizes}]
    sizes = [one for one in sizes if one.old != one.new]
    found: set[Kind] = {kind for one in (*inputs, *steps) for kind in one.kinds}
    # a symbol that only one side has belongs to an input or an axis of that side, where it is counted
    if any(one.old is not None and one.new is not None for one in sizes):
        found.add("size")
    results = _result_changes(old, new, alignment)
    if results or not comparison.renames.same_text(old.failure or "", new.failure or ""):
        found.add("steps")
    return Difference(
        old=Side(old.target, old.totals, old.sizes, old.failure),
        new=Side(new.target, new.totals, new.sizes, new.failure),
        kinds=tuple(kind for kind in KINDS if kind in found),
        sizes=tuple(sizes),
        renamed=comparison.renames.listed,
        inputs=inputs,
        steps=steps,
        results=results,
    )


class _Comparison:
    """Compares the aligned steps of two outlines."""

    def __init__(self, old: Outline, new: Outline, alignment: Alignment) -> None:
        self._old, self._new = old, new
        self._alignment = alignment
        self._origins = Origins(old, new, alignment)
        self.renames = Renames.between(old, new, (*alignment.inputs, *alignment.steps))

    def step_change(self, match: Match) -> StepChange:
        """Return the difference of two steps that belong together."""
        old, new = match
        if old is None or new is None:
            return StepChange(old=old, new=new, kinds=("steps",))
        facts = self._step_facts(old, new)
        sizes = self._old.sizes, self._new.sizes
        outputs = tuple(
            OutputChange(one, other, changed_facts(one, other, self._origins, sizes))
            if one is not None and other is not None
            else OutputChange(one, other)
            for one, other in zip_longest(old.outputs, new.outputs)
        )
        found = {kind for output in outputs for kind in kinds_of(output.changed)}
        if set(facts) - {"expression", "operands"}:
            found.add("steps")
        kinds = tuple(kind for kind in KINDS if kind in found)
        return StepChange(old=old, new=new, changed=facts, outputs=outputs, kinds=kinds)

    def _step_facts(self, old: OutlineStep, new: OutlineStep) -> tuple[StepFact, ...]:
        old_text, new_text = self._old.own_text(old), self._new.own_text(new)
        rewritten = not self.renames.same_text(old_text, new_text)
        same_uses = self._same_uses(old, new)
        found: dict[StepFact, bool] = {
            "operation": old.operation != new.operation,
            "expression": rewritten,
            "numbers": rewritten
            and self.renames.same_text(_NUMBER.sub("0", old_text), _NUMBER.sub("0", new_text))
            and _other_numbers(old, old_text, new, new_text),
            "uses": not same_uses,
            "operands": same_uses and self._reads_part(old, new),
            "loops": [loop.expression for loop in old.loops] != [loop.expression for loop in new.loops],
            "moved": new.index in self._alignment.moved,
            "outputs": len(old.outputs) != len(new.outputs),
        }
        return tuple(fact for fact, differs in found.items() if differs)

    def _same_uses(self, old: OutlineStep, new: OutlineStep) -> bool:
        if len(old.uses) != len(new.uses):
            return False
        return all(self._origins.same(one, other) for one, other in zip(old.uses, new.uses, strict=True))

    def _reads_part(self, old: OutlineStep, new: OutlineStep) -> bool:
        """Return whether a step, under another text, reads only some of what was combined, or the other way round."""
        whole = all(self._origins.fully_same(one, other) for one, other in zip(old.uses, new.uses, strict=True))
        return not whole and not self.renames.same_text(old.expression, new.expression)


def _other_numbers(old: OutlineStep, old_text: str, new: OutlineStep, new_text: str) -> bool:
    """Return whether a number in the steps' own texts changed; an axis counted from the other end didn't change."""
    if {base_name(old.operation), base_name(new.operation)} & _NUMBERS_SEEN_IN_RESULT:
        return False
    ranks = {len(output.shape) for step in (old, new) for output in step.outputs}
    pairs = zip(map(float, _NUMBER.findall(old_text)), map(float, _NUMBER.findall(new_text)), strict=False)
    return any(one != other and not any(_same_axis(one, other, rank) for rank in ranks) for one, other in pairs)


def _same_axis(one: float, other: float, rank: int) -> bool:
    axes = range(-rank, rank)
    return one in axes and other in axes and one % rank == other % rank


# tensors


def changed_facts(
    old: OutlineTensor, new: OutlineTensor, origins: Origins, sizes: tuple[Sizes, Sizes]
) -> tuple[Fact, ...]:
    """Return the facts that changed; `sizes` are those of the old side and of the new side."""
    unexplained = _unexplained(old) & _unexplained(new)
    found: dict[Fact, bool] = {
        "signature": old.signature != new.signature,
        "shape": _without(old.shape, unexplained) != _without(new.shape, unexplained),
        "stride": not same_strides(old, new, sizes),
        "storage": old.kind != new.kind or not origins.same(old.of, new.of),
        "dtype": old.dtype != new.dtype,
        "bytes": old.bytes != new.bytes
        and not (unexplained and old.signature == new.signature and old.dtype == new.dtype),
    }
    return tuple(fact for fact, differs in found.items() if differs)


def kinds_of(facts: tuple[Fact, ...]) -> frozenset[Kind]:
    """Return the kinds that changed facts count as; a new shape with a new signature is no change of a size."""
    counted = [fact for fact in facts if fact in _KIND_OF and not (fact == "shape" and "signature" in facts)]
    return frozenset(_KIND_OF[fact] for fact in counted)


def _unexplained(tensor: OutlineTensor) -> frozenset[int]:
    """Return the axes whose sizes depend on the data, and so change with the seed."""
    words = tensor.signature.split()
    if len(words) != len(tensor.shape):
        return frozenset()
    return frozenset(place for place, word in enumerate(words) if word == UNEXPLAINED)


def _without(shape: tuple[int, ...], axes: frozenset[int]) -> list[int | None]:
    return [None if place in axes else size for place, size in enumerate(shape)]


def same_strides(old: OutlineTensor, new: OutlineTensor, sizes: tuple[Sizes, Sizes]) -> bool:
    """Return whether two tensors have the same layout in memory.

    They do where both are contiguous, or both are dense with their axes in the same order. Otherwise each stride must
    be the same number, or the number that one side's formula gives at the other side's sizes, or unexplained on both
    sides. The stride of an axis of size 1 doesn't matter.
    """
    if old.contiguous != new.contiguous or len(old.stride) != len(new.stride):
        return False
    if old.contiguous:
        return True
    order = _dense_order(old)
    if order is not None and order == _dense_order(new):
        return True
    if _unexplained(old) & _unexplained(new) and _order(old) == _order(new):
        return True
    relevant = [place for place in range(len(new.stride)) if not old.shape[place] == new.shape[place] == 1]
    if all(old.stride[place] == new.stride[place] for place in relevant):
        return True
    return all(_follows_from_sizes(old, new, place, sizes) for place in relevant)


def _follows_from_sizes(old: OutlineTensor, new: OutlineTensor, place: int, sizes: tuple[Sizes, Sizes]) -> bool:
    """Return whether an axis has another stride only because the sizes differ."""
    before, after = old.stride_formulas, new.stride_formulas
    if before and _evaluate(before[place], sizes[1]) == new.stride[place]:
        return True
    if after and _evaluate(after[place], sizes[0]) == old.stride[place]:
        return True
    # a number that changes with the sizes isn't a constant: its formula is unknown
    unknown = bool(before and after) and before[place].isdecimal() and after[place].isdecimal()
    return unknown and sizes[0] != sizes[1] and _order(old) == _order(new)


def _evaluate(formula: str, sizes: Sizes) -> int | None:
    try:
        return parse_expression(formula).evaluate(sizes)
    except (AttnshapeError, KeyError):
        return None


def _order(tensor: OutlineTensor) -> list[int]:
    """Return the axes from the outermost in memory to the innermost."""
    return sorted(range(len(tensor.stride)), key=lambda place: -tensor.stride[place])


def _dense_order(tensor: OutlineTensor) -> list[int] | None:
    """Return the axes longer than 1 from the outermost to the innermost; None if they leave gaps or overlap."""
    if len(tensor.shape) != len(tensor.stride):
        return None
    order = [place for place in _order(tensor) if tensor.shape[place] != 1]
    dense = 1
    for place in reversed(order):
        if tensor.stride[place] != dense:
            return None
        dense *= tensor.shape[place]
    return order


# what the code returns


def _result_changes(old: Outline, new: Outline, alignment: Alignment) -> tuple[ResultChange, ...]:
    """Return the returned tensors that changed; none if a side failed, since it returned nothing.

    Results in the same place belong together, then those that are the same tensor.
    """
    if old.failure is not None or new.failure is not None:
        return ()

    def same(one: OutlineResult, other: OutlineResult) -> bool:
        return _on_new_side(one.of, alignment) == other.of

    return tuple(
        ResultChange(one, other)
        for one, other in _paired(old.results, new.results, same)
        if one is None or other is None or one.name != other.name or not same(one, other)
    )


def _on_new_side(old: Reference, alignment: Alignment) -> Reference | None:
    """Return an old reference as the new side's; None if its tensor is gone."""
    if old.step is not None:
        step = alignment.to_new.get(old.step)
        return Reference(step=step, output=old.output) if step is not None else None
    if old.input is not None:
        return Reference(input=alignment.inputs_to_new.get(old.input, old.input))
    return old


def _paired(
    old: tuple[OutlineResult, ...],
    new: tuple[OutlineResult, ...],
    same: Callable[[OutlineResult, OutlineResult], bool],
) -> list[tuple[OutlineResult | None, OutlineResult | None]]:
    remaining = {one.name: one for one in new}
    pairs: list[tuple[OutlineResult | None, OutlineResult | None]] = []
    pairs += [(one, remaining.pop(one.name)) for one in old if one.name in remaining]
    in_place = {one.name for one, _ in pairs if one is not None}
    for one in (one for one in old if one.name not in in_place):
        other = next((other for other in remaining.values() if same(one, other)), None)
        pairs.append((one, remaining.pop(other.name) if other is not None else None))
    return [*pairs, *((None, other) for other in remaining.values())]
