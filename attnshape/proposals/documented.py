"""Orders descriptions of inputs by the shapes that the docstring or a comment gives them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnshape.comments.documented import docstring_entries
from attnshape.comments.functions import CommentedSource, FunctionNode, comments_in, find_function, parameter_names
from attnshape.comments.grammar import parse_comment
from attnshape.comments.notation import AxisToken, find_shapes
from attnshape.errors import AttnshapeError
from attnshape.observation.forms import FunctionId
from attnshape.proposals import conventions
from attnshape.targets.inputs import annotated_inputs

Documented = Mapping[str, tuple[AxisToken, ...]]
"""The axes of each argument that its annotation, the docstring, or else a comment, gives one shape."""


def documented_arguments(call: Callable[..., Any]) -> dict[str, tuple[AxisToken, ...]]:
    """Return the axes that annotations or a function's docstring give its arguments, of those with one certain shape.

    Of the others, the axes that a comment gives them.
    """
    return {**_in_text(call), **_in_annotations(call)}


def _in_annotations(call: Callable[..., Any]) -> dict[str, tuple[AxisToken, ...]]:
    """Return the axes that jaxtyping annotations give the arguments, whose names may not be size symbols."""
    try:
        tensors = annotated_inputs(call)
    except AttnshapeError:  # an axis is left open
        return {}
    shapes = {tensor.name: next(find_shapes(f"({', '.join(tensor.signature.split())},)"), None) for tensor in tensors}
    return {name: shape.axes for name, shape in shapes.items() if shape is not None}


def _in_text(call: Callable[..., Any]) -> dict[str, tuple[AxisToken, ...]]:
    """Return the axes that a docstring or comments give the arguments."""
    code = getattr(inspect.unwrap(call), "__code__", None)
    if code is None:
        return {}
    found = find_function(FunctionId(code.co_filename, code.co_qualname, code.co_firstlineno))
    if found is None:
        return {}
    file, node, owner = found
    shapes: dict[str, list[tuple[AxisToken, ...]]] = {}
    for entry in docstring_entries(node, owner):
        if entry.of == "parameter" and entry.parameter is not None:
            shapes.setdefault(entry.parameter, []).extend(shape.axes for shape in find_shapes(entry.text))
    for name, axes in _in_comments(file, node):
        if not shapes.get(name):
            shapes[name] = [axes]
    return {
        name: axes[0]
        for name, axes in shapes.items()
        if len(set(axes)) == 1 and all(axis.kind in ("name", "expression", "number") for axis in axes[0])
    }


def _in_comments(file: CommentedSource, node: FunctionNode) -> Iterator[tuple[str, tuple[AxisToken, ...]]]:
    """Yield arguments with the axes that a comment gives them before they are bound to something else.

    It names the argument, as `# x: (B, N, C)`, stands beside it in the signature, or is an arrow above what reads
    nothing else yet: `# (B, T, N, D) -> (B, T, N, 1)` above `energy = self.projection(x)`. Above `x = x.flatten(1)` it
    may be about the new `x`, unless the comments there tell of arguments that the statement doesn't bind.
    """
    parameters = set(parameter_names(node))
    named_above: dict[int, set[str]] = {}
    for comment in comments_in(file, node):
        if comment.where == "above" and comment.statement is not None:
            labels = {name for claim in parse_comment(comment.text) for name in claim.label.names}
            named_above.setdefault(comment.statement.lineno, set()).update(labels & parameters)
    names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    bound_at = {inner.id: inner.lineno for inner in reversed(names) if isinstance(inner.ctx, ast.Store)}
    for comment in comments_in(file, node):
        claims = parse_comment(comment.text)
        inside = list(ast.walk(comment.statement)) if comment.statement is not None else []
        mentioned = [inner for inner in inside if isinstance(inner, ast.Name) and inner.id != "self"]
        stored = {inner.id for inner in mentioned if isinstance(inner.ctx, ast.Store)}
        if (
            comment.where == "above"
            and comment.statement is not None
            and named_above[comment.statement.lineno] - stored
        ):
            stored = set()
        for claim in claims:
            named = {comment.parameter} if comment.parameter is not None else set(claim.label.names) - stored
            if claim.role == "result" and len(claim.shapes) == 1:
                for name in named & parameters:
                    if bound_at.get(name, comment.line) >= comment.line:
                        yield name, claim.shapes[0].axes
        operands = [claim for claim in claims if claim.chained and claim.role == "operand"]
        if comment.where == "above" and comment.statement is not None and len(operands) == 1:
            read = {inner.id for inner in mentioned if isinstance(inner.ctx, ast.Load)}
            for name in read & parameters:
                if len(read) == 1 and bound_at.get(name, comment.line) >= comment.line:
                    yield name, operands[0].shapes[0].axes


def described_by_names(documented: Documented) -> dict[str, str]:
    """Return descriptions of the arguments whose documented axes all have names that tell what they are.

    >>> from attnshape.comments.notation import find_shapes
    >>> shapes = {"x": "(batch, seq_len, d_model)", "bias": "[n_head, d_head]", "xyz": "(B, N, 3)", "y": "(foo, bar)"}
    >>> shapes["both"] = "(L, B, hidden_size * 2)"
    >>> described_by_names({name: next(find_shapes(text)).axes for name, text in shapes.items()})
    {'x': 'B L D', 'bias': 'H Dk', 'xyz': 'B L 3', 'both': 'L B D*2'}
    """
    described: dict[str, str] = {}
    for name, axes in documented.items():
        texts = tuple(axis.text for axis in axes)
        words = zip(axes, conventions.with_batch_named(texts), strict=True)
        symbols = [_symbol(axis, word) for axis, word in words]
        if None in symbols:
            continue
        if all(axis.kind == "name" for axis in axes) and (together := conventions.axes_named(texts)) is not None:
            symbols = list(together)
        if "H" in symbols:
            symbols = ["Dk" if symbol == "D" else symbol for symbol in symbols]
        described[name] = " ".join(filter(None, symbols))
    return described


def _symbol(axis: AxisToken, word: str) -> str | None:
    """Return the size of an axis, whose plain name is `word` where it has one; None if that says nothing."""
    if axis.kind == "number":
        return axis.text
    if axis.kind == "name":
        return conventions.symbol_of_axis(word)
    symbols = {name: conventions.symbol_of_axis(name) for name in axis.names}
    if None in symbols.values():
        return None
    return re.sub(r"[^\W\d]\w*", lambda name: symbols[name[0]] or "", axis.text)


def with_documented_rank(families: Iterable[str], axes: Sequence[AxisToken]) -> list[str]:
    """Return descriptions of a tensor, those first that have as many axes as are documented.

    >>> with_documented_rank(["B L D", "B H L Dk"], next(find_shapes("(B, T, N, D)")).axes)
    ['B H L Dk', 'B L D']
    """
    return sorted(families, key=lambda family: len(family.split("] ")[-1].split()) != len(axes))


def as_documented(options: Sequence[dict[str, str]], documented: Documented) -> list[dict[str, str]]:
    """Return descriptions of inputs, those first in which each name of the docstring has one meaning.

    An axis that is documented by an expression has that size.

    >>> from attnshape.comments.notation import find_shapes
    >>> axes = {"q": "(N, T, C)", "k": "(N, T, C)", "pos": "(N, 2*T-1, C)"}
    >>> documented = {name: next(find_shapes(text)).axes for name, text in axes.items()}
    >>> two, one = {"q": "B Lq D", "k": "B Lk D", "pos": "B L D"}, {"q": "B L D", "k": "B L D", "pos": "B L D"}
    >>> as_documented([two, one], documented)[0]
    {'q': 'B L D', 'k': 'B L D', 'pos': 'B 2*L-1 D'}
    """
    fitting = [fitted for one in options if (fitted := _fitted(one, documented)) is not None]
    return [*fitting, *(one for one in options if one not in fitting)]


def _fitted(described: Mapping[str, str], documented: Documented) -> dict[str, str] | None:
    """Return a description with the documented expressions; None if a name would stand for several symbols."""
    meanings: dict[str, str] = {}
    for name, axes in documented.items():
        symbols = described.get(name, "").split("] ")[-1].split()
        if not symbols:
            continue
        if len(symbols) != len(axes):
            return None
        for axis, symbol in zip(axes, symbols, strict=True):
            if axis.kind == "name" and meanings.setdefault(axis.text, symbol) != symbol:
                return None
    fitted = dict(described)
    for name, axes in documented.items():
        expressions = [axis for axis in axes if axis.kind == "expression"]
        if name in described and expressions and all(meanings.keys() >= set(axis.names) for axis in expressions):
            kind = described[name][: described[name].find("] ") + 2] if "] " in described[name] else ""
            symbols = described[name].removeprefix(kind).split()
            fitted[name] = kind + " ".join(
                re.sub(r"[^\W\d]\w*", lambda word: meanings[word[0]], axis.text) if axis in expressions else symbol
                for axis, symbol in zip(axes, symbols, strict=True)
            )
    return fitted
