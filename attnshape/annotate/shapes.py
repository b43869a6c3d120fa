"""Shapes as comments: `(B, H, Lq, Lk)`, written and recognised."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from attnshape.annotate.words import UNKNOWN, known
from attnshape.variables.forms import ANY_NUMBER, Form, ItemsForm, OtherForm, TensorForm

_WORD = r"(?:\.\.\.|[\w+\-*/ ()]+)"
_SHAPE = rf"(?:\(\s*(?:{_WORD}(?:\s*,\s*{_WORD})*\s*,?)?\s*\)|\[\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?\s*\])"
_NAMED = rf"(?:(?:[\w.]+\s*,\s*)*[\w.]+\s*:\s*)?{_SHAPE}(?:\s+or\s+None)?"
_SHAPES = re.compile(rf"#\s*{_NAMED}(?:\s*,\s*{_NAMED})*(?:\s+each)?\s*")
_ONE = re.compile(rf"(?P<names>(?:[\w.]+\s*,\s*)*[\w.]+)?\s*:?\s*(?P<shape>{_SHAPE})")


@dataclass(frozen=True)
class ShapeComment:
    """A comment that is a shape, or the part of one behind its last `#`."""

    start: int
    """Where it begins in the comment."""
    shapes: tuple[tuple[str, ...], ...]
    """The words of each shape in it."""


def shape_text(form: Form, matched: bool) -> str | None:
    """Return a form as a comment has it, without its `#`; None where too little is known of it.

    >>> from attnshape.variables.forms import AxisForm
    >>> axes = (AxisForm("B", "proved"), AxisForm("H*Dk", "proved"), AxisForm(None))
    >>> shape_text(Form(TensorForm(frozenset(["float32"]), axes), optional=True), False)
    '(B, H*Dk, _) or None'
    """
    match form.of:
        case TensorForm(axes=axes):
            words = [known(axis, matched) or UNKNOWN for axis in axes]
            if words and all(word in (UNKNOWN, ANY_NUMBER) for word in words):
                return None
            text = f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"
        case ItemsForm(items=items) if items:
            parts = [shape_text(item, matched) for item in items]
            there = [part for part in parts if part is not None]
            if len(there) < len(parts):
                return None
            text = f"{there[0]} each" if len(set(there)) == 1 and len(there) > 1 else ", ".join(there)
        case OtherForm() | ItemsForm():
            return None
    return f"{text} or None" if form.optional else text


def joined(named: Sequence[tuple[str, str]]) -> str:
    """Return the shapes of several names in one comment; names of one shape stand together.

    >>> joined([("q", "(B, L)"), ("k", "(B, L)"), ("mask", "(L, L)")])
    'q, k: (B, L), mask: (L, L)'
    """
    groups: list[tuple[list[str], str]] = []
    for name, text in named:
        if groups and groups[-1][1] == text:
            groups[-1][0].append(name)
        else:
            groups.append(([name], text))
    return ", ".join(f"{', '.join(names)}: {text}" for names, text in groups)


def shape_comment(comment: str, symbols: Collection[str], ranks: Collection[int]) -> ShapeComment | None:
    """Return the shapes that a comment, or its part behind the last `#`, says; None where it says something else.

    What could be prose, as `(q, k, v)`, counts only where a word in it is a size symbol, or there are as many words as
    one of the `ranks`.

    >>> shape_comment("# project  # (B, L, D)", {"B"}, ())
    ShapeComment(start=11, shapes=(('B', 'L', 'D'),))
    >>> shape_comment("# (see Vaswani et al., 2017)", {"B"}, {4}), shape_comment("# (q, k)", {"B"}, {3})
    (None, None)
    """
    start = comment.rfind("#")
    text = comment[start:].rstrip()
    if not _SHAPES.fullmatch(text):
        return None
    shapes = tuple(_words(match["shape"]) for match in _ONE.finditer(text))
    words = {name for shape in shapes for word in shape for name in re.findall(r"[^\W\d]\w*", word)}
    if words & set(symbols) or any(len(shape) in ranks for shape in shapes):
        return ShapeComment(start, shapes)
    return None


def _words(shape: str) -> tuple[str, ...]:
    inside = shape[1:-1].strip().removesuffix(",")
    return tuple("".join(word.split()) for word in inside.split(",")) if inside else ()
