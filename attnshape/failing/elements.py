"""`view`, `reshape` and `unflatten` to the wrong number of elements."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attnshape.failing.finding import Candidate, Finding
from attnshape.failing.scene import Party, Scene, integers, numel, parsed
from attnshape.failing.words import place, product, quoted, size, sized
from attnshape.tracing.raw import RawCall

_RESHAPES = ("view", "reshape", "unsafe_view")


def wrong_number(scene: Scene) -> Finding | None:
    """Explain a new shape that has not as many elements as the old one."""
    party = scene.operand(0, "input", "self")
    new = new_shape(scene.call)
    if party is None or new is None or scene.operation not in _RESHAPES or not new:
        return None
    old, known = numel(party.shape), numel([one for one in new if one != -1])
    if new.count(-1) > 1 or (old == known if -1 not in new else known and old % known == 0):
        return None
    texts = [str(one) if one < 2 else scene.formula(partial(_new_size, axis), one) for axis, one in enumerate(new)]
    before = product([axis.expression for axis in party.record.axes])
    after = product([text for text, one in zip(texts, new, strict=True) if one != -1])
    changed, become = changed_axes(party, new)
    given = "the new shape has" if -1 not in new else "no whole number of"
    explanation = (
        f"{scene.operation} keeps the number of elements: {quoted(party)} has {_equal(before, old)} elements, "
        f"{given} {_equal(after, known)}"
    )
    explanation += _remainder(party, changed, [(texts[axis], new[axis]) for axis in become])
    candidates = tuple(_inferred(scene, party, new)) if -1 not in new else ()
    return Finding(explanation, {party.place: changed}, candidates)


def _equal(text: str, number: int) -> str:
    return f"{number:,}" if text.replace("*", "").isdecimal() else f"{text} = {number:,}"


def new_shape(call: RawCall | None) -> list[int] | None:
    """Return the sizes that a reshape was given, None where they aren't all numbers."""
    if call is None:
        return None
    given = call.args[1:] or tuple(call.keywords[word] for word in ("shape", "size") if word in call.keywords)
    try:
        return list(integers(given))
    except TypeError:
        return None


def _new_size(axis: int, call: RawCall) -> int:
    return (new_shape(call) or [])[axis]


def changed_axes(party: Party, new: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """Return the axes of the old shape, and of the new one, that lie between the equal ones at both ends."""
    shortest = min(party.rank, len(new))
    start = next((axis for axis in range(shortest) if party.shape[axis] != new[axis]), shortest)
    rest = shortest - start
    end = next((back for back in range(rest) if party.shape[-1 - back] != new[-1 - back]), rest)
    return tuple(range(start, party.rank - end)), list(range(start, len(new) - end))


def _remainder(party: Party, changed: Sequence[int], parts: Sequence[tuple[str, int]]) -> str:
    """Say where one axis doesn't divide into the parts that it was to be split into."""
    if len(changed) != 1 or len(parts) < 2:
        return ""
    whole = party.shape[changed[0]]
    for text, number in parts:
        others = numel([other for name, other in parts if (name, other) != (text, number)])
        if number > 1 and whole % number and whole // number == others:
            return f"; {size(party, changed[0])} isn't a multiple of {sized(text, number)}"
    return ""


def _inferred(scene: Scene, party: Party, new: Sequence[int]) -> Iterator[Candidate]:
    """Yield the call with -1 for one of its sizes."""
    tree = parsed(scene.expression)
    if not isinstance(tree, ast.Call) or scene.call is None or len(scene.call.args) < 2:
        return
    written: Sequence[ast.expr] = tree.args if len(scene.call.args) == len(tree.args) + 1 else tree.args[1:]
    if len(written) == 1 and isinstance(written[0], (ast.Tuple, ast.List)):
        written = written[0].elts
    if len(written) != len(new) or any(isinstance(one, ast.Starred) for one in written):
        return
    for axis, node in enumerate(written):
        text = f"{scene.expression[: node.col_offset]}-1{scene.expression[node.end_col_offset :]}"
        # heads are merged far more often than lengths: the last axis, where all before it stay
        merges = axis == len(new) - 1 and tuple(new[:axis]) == party.shape[:axis]
        yield Candidate(text, call=partial(_with_inferred, axis), rank=0 if merges else 1)


def _with_inferred(axis: int, call: RawCall) -> RawCall:
    shape = new_shape(call)
    if shape is None:
        return call
    return replace(call, args=(call.args[0], (*shape[:axis], -1, *shape[axis + 1 :])), keywords={})


def unflattened(scene: Scene) -> Finding | None:
    """Explain an unflatten into sizes that don't multiply up to the axis."""
    party, sizes, axis = scene.operand(0, "input", "self"), scene.argument(2, "sizes"), scene.argument(1, "dim")
    if scene.operation != "unflatten" or party is None or type(axis) is not int or not -party.rank <= axis < party.rank:
        return None
    try:
        parts = list(integers(sizes))
    except TypeError:
        return None
    axis %= party.rank
    known = numel([one for one in parts if one != -1])
    if "multiply up" not in scene.message and "don't divide" not in scene.message and "divis" not in scene.message:
        return None
    texts = [str(one) if one < 2 else scene.formula(partial(_part, at), one) for at, one in enumerate(parts)]
    total = _equal(product([text for text, one in zip(texts, parts, strict=True) if one != -1]), known)
    remainder = _remainder(party, [axis], list(zip(texts, parts, strict=True)))
    return Finding(
        f"the sizes given multiply up to {total}: {place(axis, party.rank)} of {quoted(party)} is "
        f"{size(party, axis)}{remainder}",
        {party.place: (axis,)},
    )


def _part(at: int, call: RawCall) -> int:
    return list(integers(call.args[2] if len(call.args) > 2 else call.keywords["sizes"]))[at]
