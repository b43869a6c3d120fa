"""Compares two outlines: aligns their steps and states what differs in each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap, zip_longest

from attnshape.comparison.align import Alignment, Match, align
from attnshape.comparison.arguments import argument_changes
from attnshape.comparison.behaviour import compare_behaviour
from attnshape.comparison.outline import UNEXPLAINED, Outline
from attnshape.dims.expressions import parse_expression
from attnshape.errors import AttnshapeError
from attnshape.model.difference import (
    KINDS,
    ArgumentChange,
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
from attnshape.tracing.operations import NUMBERS_SEEN_IN_RESULT, base_name

_CONSTANTS = frozenset({"True", "False", "None"})
_WORD = re.compile(r"[^\W\d]\w*")
_CALLED = re.compile(r"(?<!\w)([^\W\d]\w*)\(")
_TOKEN = re.compile(r"\w+|\S")


class Renames:
    """The one-to-one renames that aligned steps show.

    A word was renamed if only the old side has it, only the new side has the word in its place, and the two always
    replace each other.
    """

    def __init__(self, old: Outline, new: Outline, matches: Sequence[Match]) -> None:
        steps = [(one, other) for one, other in matches if one is not None and other is not None]
        same_count = [pair for pair in steps if len(pair[0].outputs) == len(pair[1].outputs)]
        outputs = [pair for one, other in same_count for pair in zip(one.outputs, other.outputs, strict=True)]
        names = [(a.name, b.name) for a, b in outputs if a.name is not None and b.name is not None]
        texts = [(one.expression, other.expression) for one, other in steps if one.operation == other.operation]
        # calling another function does something else
        called = _called_operations(old) | _called_operations(new)
        pairs = dict.fromkeys(pair for text in (*names, *texts) for pair in _words_in_same_places(*text))
        replaced = [pair for pair in pairs if pair[0] != pair[1] and not called & set(pair)]
        olds, news = Counter(word for word, _ in replaced), Counter(word for _, word in replaced)
        old_words, new_words = set(_words_of(old)), set(_words_of(new))
        self._words = {
            word: other
            for word, other in replaced
            if olds[word] == news[other] == 1 and word not in new_words and other not in old_words
        }
        renamed = [pair for pair in names if pair[0] != pair[1]]
        listed = {word for pair in renamed for text in pair for word in _WORD.findall(text)}
        others = [pair for pair in self._words.items() if not listed & set(pair)]
        self.listed = tuple(Rename(*pair) for pair in dict.fromkeys([*renamed, *others]))
        """Each rename once, in order of appearance."""

    def same_text(self, old: str, new: str) -> bool:
        """Return whether two texts are equal apart from renames and whitespace."""
        return [self._words.get(token, token) for token in _TOKEN.findall(old)] == _TOKEN.findall(new)


def _called_operations(outline: Outline) -> set[str]:
    """Return the names of the steps' operations that are called in expressions; these aren't variables."""
    operations = {step.operation for step in outline.steps}
    return {word for step in outline.steps for word in _CALLED.findall(step.expression) if word in operations}


def _words_in_same_places(old: str, new: str) -> list[tuple[str, str]]:
    """Return the words in the same places of two texts that are equal apart from their words."""
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    pairs = list(zip(before, after, strict=False))
    if len(before) != len(after) or not all(a == b or (_WORD.fullmatch(a) and _WORD.fullmatch(b)) for a, b in pairs):
        return []
    return [pair for pair in pairs if _WORD.fullmatch(pair[0]) and not _CONSTANTS & set(pair)]


def _words_of(outline: Outline) -> Iterator[str]:
    for step in (*outline.inputs, *outline.steps):
        yield from _WORD.findall(step.expression)
        for output in step.outputs:
            yield from _WORD.findall(output.name or "")


Sizes = Mapping[str, int]

_KIND_OF: dict[Fact, Kind] = {
    "signature": "signature",
    "shape": "size",
    "stride": "stride",
    "storage": "storage",
    "dtype": "dtype",
}
"""The kind that each fact counts as. Bytes only follow from other facts."""
_NUMBER = re.compile(r"(?<![\w.)\]])-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")


def compare(old: Outline, new: Outline) -> Difference:
    """Return the difference of two outlines; there is none between two runs of the same code."""
    alignment = align(old, new)
    comparison = _Comparison(old, new, alignment)
    inputs = tuple(map(comparison.step_change, alignment.inputs))
    steps = tuple(map(comparison.step_change, alignment.steps))
    sizes = [SizeChange(symbol, old.sizes.get(symbol), new.sizes.get(symbol)) for symbol in {**new.sizes, **old.sizes}]
    sizes = [size for size in sizes if size.old != size.new]
    kinds: set[Kind] = {kind for change in (*inputs, *steps) for kind in change.kinds}
    # a symbol that only one side has belongs to an input or an axis of that side, where it is counted
    if any(size.old is not None and size.new is not None for size in sizes):
        kinds.add("size")
    results = _result_changes(old, new, alignment)
    if results or not comparison.renames.same_text(old.failure or "", new.failure or ""):
        kinds.add("steps")
    behaviour = compare_behaviour(old.behaviour, new.behaviour, comparison.renames.same_text)
    if behaviour.changed:
        kinds.add("behaviour")
    return Difference(
        old=Side(old.target, old.totals, old.sizes, old.failure),
        new=Side(new.target, new.totals, new.sizes, new.failure),
        kinds=tuple(kind for kind in KINDS if kind in kinds),
        sizes=tuple(sizes),
        renamed=comparison.renames.listed,
        inputs=inputs,
        steps=steps,
        results=results,
        behaviour=behaviour,
    )


class _Comparison:
    """Compares the aligned steps of two outlines.

    References of both sides are traced back to their origins: tensors that both sides have. An inserted step passes on
    what it reads: a view of its result counts as a view of the tensor that it read.
    """

    def __init__(self, old: Outline, new: Outline, alignment: Alignment) -> None:
        self._old, self._new, self._alignment = old, new, alignment
        self._old_steps, self._new_steps = ({step.index: step for step in side.steps} for side in (old, new))
        self._kept = set(alignment.to_new.values())
        self._old_parameters, self._new_parameters = _parameters(old), _parameters(new)
        self.renames = Renames(old, new, (*alignment.inputs, *alignment.steps))

    def step_change(self, match: Match) -> StepChange:
        """Return the difference of two steps that belong together."""
        old, new = match
        if old is None or new is None:
            return StepChange(old=old, new=new, kinds=("steps",))
        arguments: tuple[ArgumentChange, ...] = ()
        if self._old.holds_arguments and self._new.holds_arguments:
            arguments = tuple(argument_changes(old, new, (self._old.sizes, self._new.sizes)))
        facts = self._step_facts(old, new, bool(arguments))
        outputs = tuple(
            OutputChange(a, b, self._changed_facts(a, b) if a is not None and b is not None else ())
            for a, b in zip_longest(old.outputs, new.outputs)
        )
        kinds = {kind for output in outputs for kind in kinds_of(output.changed)}
        if set(facts) - {"expression", "operands"}:
            kinds.add("steps")
        ordered = tuple(kind for kind in KINDS if kind in kinds)
        return StepChange(old=old, new=new, changed=facts, arguments=arguments, outputs=outputs, kinds=ordered)

    def _step_facts(self, old: OutlineStep, new: OutlineStep, other_arguments: bool) -> tuple[StepFact, ...]:
        old_text, new_text = self._old.text_without_operands(old), self._new.text_without_operands(new)
        rewritten = not self.renames.same_text(old_text, new_text)
        uses = list(zip(old.uses, new.uses, strict=False))
        same_uses = len(old.uses) == len(new.uses) and all(self._same(a, b) for a, b in uses)
        # under another text, it reads only some of what was combined, or the other way round: a sum isn't its terms
        reads_part = same_uses and any(a != b for a, b in starmap(self._origins, uses))
        facts: dict[StepFact, bool] = {
            "operation": old.operation != new.operation,
            "expression": rewritten,
            "numbers": rewritten
            and self.renames.same_text(_NUMBER.sub("0", old_text), _NUMBER.sub("0", new_text))
            and _other_numbers(old, old_text, new, new_text),
            "arguments": other_arguments,
            "uses": not same_uses,
            "operands": reads_part and not self.renames.same_text(old.expression, new.expression),
            "loops": [loop.expression for loop in old.loops] != [loop.expression for loop in new.loops],
            "moved": new.index in self._alignment.moved,
            "outputs": len(old.outputs) != len(new.outputs),
        }
        return tuple(fact for fact, differs in facts.items() if differs)

    def _changed_facts(self, old: OutlineTensor, new: OutlineTensor) -> tuple[Fact, ...]:
        unexplained = _unexplained(old) & _unexplained(new)
        facts: dict[Fact, bool] = {
            "signature": old.signature != new.signature,
            "shape": _without(old.shape, unexplained) != _without(new.shape, unexplained),
            "stride": not same_strides(old, new, (self._old.sizes, self._new.sizes)),
            "storage": old.kind != new.kind or not self._same(old.of, new.of),
            "dtype": old.dtype != new.dtype,
            "bytes": old.bytes != new.bytes
            and not (unexplained and old.signature == new.signature and old.dtype == new.dtype),
        }
        return tuple(fact for fact, differs in facts.items() if differs)

    def _same(self, old: Reference | None, new: Reference | None) -> bool:
        """Return whether two references mean the same tensor, or one computed from it by a step of one side only."""
        if old is None or new is None:
            return old is new
        if old.parameter is not None and new.parameter is not None:
            renamed = old.parameter not in self._new_parameters and new.parameter not in self._old_parameters
            return old.parameter == new.parameter or renamed
        old_origins, new_origins = self._origins(old, new)
        return bool(old_origins & new_origins) or old_origins == new_origins

    def _origins(self, old: Reference, new: Reference) -> tuple[set[Reference], set[Reference]]:
        """Return the inputs, parameters and outputs of common steps that two references come from, on the new side."""

        def on_new_side(reference: Reference) -> Reference | None:
            return reference if reference.step is None or reference.step in self._kept else None

        old_origins = _trace_back(old, self._old_steps, self._alignment.on_new_side)
        return old_origins, _trace_back(new, self._new_steps, on_new_side)


def _trace_back(
    reference: Reference, steps: Mapping[int, OutlineStep], on_new_side: Callable[[Reference], Reference | None]
) -> set[Reference]:
    origins, visited, waiting = set(), set(), [reference]
    while waiting:
        reference = waiting.pop()
        if (counterpart := on_new_side(reference)) is not None:
            origins.add(counterpart)
        elif (step := steps.get(reference.step or 0)) is not None and step.index not in visited:
            visited.add(step.index)
            waiting += step.uses
    return origins


def _parameters(outline: Outline) -> set[str]:
    outputs = (output for step in (*outline.inputs, *outline.steps) for output in step.outputs)
    return {output.of.parameter for output in outputs if output.of is not None and output.of.parameter is not None}


def _other_numbers(old: OutlineStep, old_text: str, new: OutlineStep, new_text: str) -> bool:
    """Return whether a number in the steps' own texts changed; an axis counted from the other end didn't change."""
    if {base_name(old.operation), base_name(new.operation)} & NUMBERS_SEEN_IN_RESULT:
        return False
    ranks = {len(output.shape) for step in (old, new) for output in step.outputs}
    pairs = zip(map(float, _NUMBER.findall(old_text)), map(float, _NUMBER.findall(new_text)), strict=False)
    return any(a != b and not any(_same_axis(a, b, rank) for rank in ranks) for a, b in pairs)


def _same_axis(number: float, other: float, rank: int) -> bool:
    return {number, other} <= {*range(-rank, rank)} and number % rank == other % rank


def kinds_of(facts: tuple[Fact, ...]) -> frozenset[Kind]:
    """Return the kinds that changed facts count as; a new shape with a new signature is no change of a size."""
    counted = [fact for fact in facts if fact in _KIND_OF and not (fact == "shape" and "signature" in facts)]
    return frozenset(_KIND_OF[fact] for fact in counted)


def _unexplained(tensor: OutlineTensor) -> frozenset[int]:
    """Return the axes whose sizes depend on the data, and so change with the seed."""
    words = tensor.signature.split()
    same_rank = len(words) == len(tensor.shape)
    return frozenset(place for place, word in enumerate(words) if same_rank and word == UNEXPLAINED)


def _without(shape: tuple[int, ...], axes: frozenset[int]) -> list[int | None]:
    return [None if place in axes else size for place, size in enumerate(shape)]


def same_strides(old: OutlineTensor, new: OutlineTensor, sizes: tuple[Sizes, Sizes]) -> bool:
    """Return whether two tensors have the same layout in memory.

    They do where both are contiguous, or both are dense with their axes in the same order. Otherwise each stride must
    be the same number, or the number that one side's formula gives at the other side's sizes, or unexplained on both
    sides. The stride of an axis of size 1 doesn't matter.
    """
    if old.layout != new.layout or old.contiguous != new.contiguous or len(old.stride) != len(new.stride):
        return False
    dense = _dense_order(old)
    if old.contiguous or (dense is not None and dense == _dense_order(new)):
        return True
    if _unexplained(old) & _unexplained(new) and _order(old) == _order(new):
        return True
    relevant = [place for place in range(len(new.stride)) if not old.shape[place] == new.shape[place] == 1]
    same_numbers = all(old.stride[place] == new.stride[place] for place in relevant)
    return same_numbers or all(_follows_from_sizes(old, new, place, sizes) for place in relevant)


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


def _result_changes(old: Outline, new: Outline, alignment: Alignment) -> tuple[ResultChange, ...]:
    """Return the returned tensors that changed; none if a side failed, since it returned nothing.

    Results in the same place belong together, then those that are the same tensor.
    """
    if old.failure is not None or new.failure is not None:
        return ()

    def same(result: OutlineResult, other: OutlineResult) -> bool:
        return alignment.on_new_side(result.of) == other.of

    remaining = {result.name: result for result in new.results}
    in_place = [(result, remaining.pop(result.name)) for result in old.results if result.name in remaining]
    changes = [ResultChange(result, other) for result, other in in_place if not same(result, other)]
    names = {result.name for result, _ in in_place}
    for result in (result for result in old.results if result.name not in names):
        other = next((other for other in remaining.values() if same(result, other)), None)
        changes.append(ResultChange(result, remaining.pop(other.name) if other is not None else None))
    return (*changes, *(ResultChange(None, other) for other in remaining.values()))
