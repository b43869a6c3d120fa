"""Shapes as comments: `(B, H, Lq, Lk)`, written and recognised."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from attnshape.annotate.words import UNKNOWN, known
from attnshape.variables.forms import ANY_NUMBER, Form, ItemsForm, OtherForm, TensorForm
from attnshape.written.comments import claims

_WORD = r"(?:\.\.\.|[\w+\-*/ ()]+)"
_SHAPE = rf"(?:\(\s*(?:{_WORD}(?:\s*,\s*{_WORD})*\s*,?)?\s*\)|\[\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?\s*\])"
_NAMED = rf"(?:(?:[\w.]+\s*,\s*)*[\w.]+\s*:\s*)?{_SHAPE}(?:\s+or\s+None)?"
_SHAPES = re.compile(rf"#\s*{_NAMED}(?:\s*,\s*{_NAMED})*(?:\s+each)?\s*")
_MORE = re.compile(r"(?!\b(?:x|to|is|now|each|both|all|shapes?|or|None)\b)\b\w+")
"""A word that says something beside the shapes in a comment."""
_ONE = re.compile(rf"(?P<names>(?:[\w.]+\s*,\s*)*[\w.]+)?\s*:?\s*(?P<shape>{_SHAPE})")


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


def shapes_alone(comment: str, symbols: Collection[str], ranks: Collection[int]) -> int | None:
    """Return where a comment's part begins, behind its last `#`, that is nothing but shapes; None where it is more.

    What could be prose, as `(q, k, v)`, counts only where a word in it is a size symbol, or there are as many words as
    one of the `ranks`.

    >>> shapes_alone("# project  # (B, L, D)", {"B"}, ()), shapes_alone("# (B, T) x (B, T, C) -> (B, C)", {"B"}, ())
    (11, 0)
    >>> shapes_alone("# (see Vaswani et al., 2017)", {"B"}, {4}), shapes_alone("# (q, k)", {"B"}, {3})
    (None, None)
    """
    start = comment.rfind("#")
    text = comment[start:].rstrip()
    if _SHAPES.fullmatch(text):
        shapes = [_words(match["shape"]) for match in _ONE.finditer(text)]
    else:
        groups = [group for one in claims(text[1:]) for group in one.groups]
        rest = text
        for group in groups:
            rest = rest.replace(group.text, " ", 1)
        if not groups or _MORE.search(rest):
            return None
        shapes = [tuple(token.text for token in group.tokens) for group in groups]
    words = {name for shape in shapes for word in shape for name in re.findall(r"[^\W\d]\w*", word)}
    return start if words & set(symbols) or any(len(shape) in ranks for shape in shapes) else None


def tensors_in(form: Form) -> Iterator[TensorForm]:
    """Yield the tensors of a form, in order."""
    match form.of:
        case TensorForm():
            yield form.of
        case ItemsForm(items=items):
            for item in items:
                yield from tensors_in(item)


def _words(shape: str) -> tuple[str, ...]:
    inside = shape[1:-1].strip().removesuffix(",")
    return tuple("".join(word.split()) for word in inside.split(",")) if inside else ()
