"""Jaxtyping types as text, from what holds of a variable."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from attnshape.annotate.words import words
from attnshape.variables.forms import Form, ItemsForm, TensorForm
from attnshape.written.types import kind_of

KINDS = ("Float", "Int", "UInt", "Bool", "Complex", "Shaped")


@dataclass(frozen=True)
class Spelling:
    """How a file says what is not its own: `Float`, or `jaxtyping.Float`; `Tensor`, or `torch.Tensor`."""

    kind: Callable[[str], str]
    tensor: str


@dataclass(frozen=True)
class Typed:
    """A type as text, with the jaxtyping kinds in it and the symbols that are sure to be bound once it was checked."""

    text: str
    kinds: frozenset[str]
    binds: frozenset[str]


def kind(dtypes: Collection[str]) -> str:
    """Return jaxtyping's name for tensors of these types.

    >>> kind(["float32", "bfloat16"]), kind(["uint8"]), kind(["int64", "bool"])
    ('Float', 'UInt', 'Shaped')
    """
    kinds = {kind_of(name) for name in dtypes}
    return kinds.pop() if len(kinds) == 1 else "Shaped"


def typed(form: Form, spelling: Spelling, bound: Collection[str], matched: bool) -> Typed | None:
    """Return the type of what has a form, None where too little is known of it.

    `bound` are the symbols that have numbers by then; with `matched`, axes that are only matched are written too.
    """
    made = _plain(form, spelling, bound, matched)
    if made is None or not form.optional:
        return made
    return Typed(f"{made.text} | None", made.kinds, frozenset())


def _plain(form: Form, spelling: Spelling, bound: Collection[str], matched: bool) -> Typed | None:
    match form.of:
        case TensorForm(dtypes=dtypes, axes=axes):
            made = words(axes, bound, matched)
            if not made.say_something:
                return None
            name = kind(dtypes)
            text = f'{spelling.kind(name)}[{spelling.tensor}, "{made.text}"]'
            return Typed(text, frozenset([name]), made.binds)
        case ItemsForm(kind="tuple", items=items) if items:
            parts = [typed(item, spelling, bound, matched) for item in items]
            there = [part for part in parts if part is not None]
            if len(there) < len(parts):
                return None
            inside = ", ".join(part.text for part in there)
            return Typed(f"tuple[{inside}]", frozenset().union(*(part.kinds for part in there)), frozenset())
    return None
