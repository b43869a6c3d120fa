"""How alike two steps are, by what they do: operation, names, expression, signature, and place in the data flow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from attnshape.comparing.outline import OutlineStep

_TOKEN = re.compile(r"\w+|\S")
_WORD = re.compile(r"[^\W\d]\w*")
_CLOSE = 0.8
"""From which share of common words on two expressions are taken for one that was edited."""

_FAMILIES: tuple[frozenset[str], ...] = (
    frozenset({"view", "reshape", "flatten", "unflatten", "rearrange", "unsqueeze", "squeeze"}),
    frozenset({"transpose", "permute", "T", "mT", "t", "swapaxes", "swapdims", "movedim", "moveaxis"}),
    frozenset({"matmul", "bmm", "mm", "einsum", "baddbmm", "tensordot"}),
    frozenset({"mul", "div", "truediv", "true_divide", "multiply", "divide"}),
    frozenset({"masked_fill", "where"}),
    frozenset({"split", "chunk", "unbind", "tensor_split"}),
    frozenset({"cat", "concat", "concatenate", "stack"}),
    frozenset({"expand", "repeat", "repeat_interleave", "broadcast_to"}),
)

Flow = Callable[[OutlineStep, OutlineStep], float]
"""How much two steps' neighbours in the data flow belong together, from 0 to 1."""


@dataclass(frozen=True)
class Traits:
    """A step, and what of it is compared again and again."""

    step: OutlineStep
    own_text: str
    """Its expression without what it reads."""

    @cached_property
    def base(self) -> str:
        """The operation, the same where it writes in place."""
        return self.step.operation.rstrip("_") or self.step.operation

    @cached_property
    def names(self) -> tuple[str | None, ...]:
        """The outputs' names."""
        return tuple(output.name for output in self.step.outputs)

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """The outputs' signatures."""
        return tuple(output.signature for output in self.step.outputs)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The expression's words and signs."""
        return tuple(_TOKEN.findall(self.own_text))

    @cached_property
    def skeleton(self) -> tuple[str, ...]:
        """The expression without the names in it, but for what is called."""
        after = (*self.tokens[1:], "")
        pairs = zip(self.tokens, after, strict=False)
        return tuple("_" if _WORD.fullmatch(one) and next_ != "(" else one for one, next_ in pairs)

    @cached_property
    def counted(self) -> Counter[str]:
        """How often each token is there."""
        return Counter(self.tokens)

    @cached_property
    def called(self) -> str:
        """The name that the expression begins with, such as a module's."""
        found = _WORD.match(self.own_text)
        return found[0] if found else ""

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What is the same in a step that wasn't touched."""
        return (self.step.operation, self.own_text, self.names, self.signatures, len(self.step.uses))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """By what steps are put in an order that doesn't depend on where they stand."""
        return (self.step.expression, self.step.operation, *(name or "" for name in self.names), *self.signatures)


class Likeness:
    """How alike the steps of two outlines are."""

    def __init__(self, old: Iterable[Traits], new: Iterable[Traits]) -> None:
        before, after = list(old), list(new)
        self._names = {name for one in before for name in one.names} & {name for one in after for name in one.names}
        self._called = {one.called for one in before} & {one.called for one in after}

    def of(self, old: Traits, new: Traits, flow: Flow) -> float:
        """Return how alike two steps are; 0 where they don't belong together."""
        named = old.names == new.names and any(old.names)
        signed = old.signatures == new.signatures
        common = _common(old, new)
        if self._are_others(old.names, new.names):
            return 0.0
        if old.base == new.base:
            if not (named or signed or common >= _CLOSE):
                return 0.0
            same = 4.0
        elif any(old.base in family and new.base in family for family in _FAMILIES):
            if not (named or signed):
                return 0.0
            same = 2.5
        else:
            # one name is used for many things: what it names must be the same kind of thing
            if not (named and signed):
                return 0.0
            same = 0.0
        if old.called != new.called and {old.called, new.called} <= self._called - {""}:
            same -= 3.0
        # the whole expression tells of which chain a step is
        whole = old.step.expression == new.step.expression
        skeletons = 1.5 if old.skeleton == new.skeleton else 0.0
        written = max(2.0 * common, skeletons) + 1.5 * whole
        return max(same + 3.0 * named + 2.0 * signed + written + 3.0 * flow(old.step, new.step), 0.0)

    def _are_others(self, old: tuple[str | None, ...], new: tuple[str | None, ...]) -> bool:
        """Say whether outputs have other names that both sides have: then neither was renamed into the other."""
        return old != new and bool(old) and bool(new) and self._names - {None} >= {*old, *new}


def _common(old: Traits, new: Traits) -> float:
    if old.own_text == new.own_text:
        return 1.0
    shared = sum((old.counted & new.counted).values())
    return 2 * shared / max(1, len(old.tokens) + len(new.tokens))
