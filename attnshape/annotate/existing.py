"""Annotations that a file has already: which say a shape, which say `Tensor` alone and can be filled in."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import libcst as cst

from attnshape.annotate.names import Names
from attnshape.annotate.tree import dotted
from attnshape.annotate.types import Spelling, Typed, typed
from attnshape.variables.forms import Form, ItemsForm, TensorForm

Sort = Literal["signature", "plain", "other"]
_PLAIN = re.compile(r"torch\.(cuda\.)?[A-Z]?[a-zA-Z0-9]*Tensor")
_TUPLES = ("tuple", "typing.Tuple")
_OPTIONAL, _UNION = "typing.Optional", "typing.Union"


@dataclass(frozen=True)
class Written:
    """An annotation of the source."""

    node: cst.BaseExpression
    """Its expression; what is in the quotes, where it is in quotes."""
    quote: str
    """The quotes that it is in, nothing where it is in none."""
    sort: Sort


def written(node: cst.BaseExpression, names: Names) -> Written:
    """Return what an annotation is."""
    quote = ""
    if isinstance(node, cst.SimpleString) and not node.prefix and isinstance(node.evaluated_value, str):
        quote = node.quote
        try:
            node = cst.parse_expression(node.evaluated_value)
        except (cst.ParserSyntaxError, ValueError):
            return Written(node, "", "other")
    if _has_signature(node, names):
        return Written(node, quote, "signature")
    return Written(node, quote, "plain" if _has_tensor(node, names) else "other")


def filled(
    given: Written, form: Form, names: Names, spelling: Spelling, bound: Collection[str], matched: bool
) -> Typed | None:
    """Return an annotation's text with shapes in the place of its tensors; None where nothing of it is known.

    What else is in it stays: `Optional[…]`, and the parts of a tuple that nothing is known of.
    """
    fill = _Fill(names, spelling, bound, matched)
    node = fill.of(given.node, form)
    if node is None:
        return None
    text = cst.Module([]).code_for_node(node)
    alone = isinstance(given.node, (cst.Name, cst.Attribute)) and not form.optional
    if given.quote:
        other = "'" if '"' in given.quote else '"'
        text = given.quote + text.replace('"', other).replace("'", other) + given.quote
    return Typed(text, frozenset(fill.kinds), frozenset(fill.binds if alone else ()))


def dims(node: cst.CSTNode, names: Names) -> list[tuple[str, str]]:
    """Return the kind and the dims string of each jaxtyping type in an annotation."""
    if isinstance(node, cst.Subscript) and (name := _kind(node, names)):
        texts = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
        if len(texts) == 2 and isinstance(texts[1], cst.SimpleString):
            return [(name, str(texts[1].evaluated_value))]
    return [found for child in node.children for found in dims(child, names)]


def surely_bound(given: Written, names: Names) -> frozenset[str]:
    """Return the symbols that are bound once a value was checked against an annotation that says a shape."""
    if not isinstance(given.node, cst.Subscript) or not _kind(given.node, names):
        return frozenset()
    return frozenset(
        word for _, text in dims(given.node, names) for word in text.split() if word.isidentifier() and word[0] != "_"
    )


def _kind(node: cst.Subscript, names: Names) -> str:
    """Return the name of the jaxtyping type that is subscripted, nothing where it is none."""
    module, _, name = names.origin(dotted(node.value)).rpartition(".")
    return name if module == "jaxtyping" else ""


def _has_signature(node: cst.CSTNode, names: Names) -> bool:
    own = isinstance(node, cst.Subscript) and bool(_kind(node, names))
    return own or any(_has_signature(child, names) for child in node.children)


def is_tensor(node: cst.CSTNode, names: Names) -> bool:
    """Say whether an annotation is a tensor's, without a shape: `Tensor`, `torch.FloatTensor`."""
    return isinstance(node, (cst.Name, cst.Attribute)) and bool(_PLAIN.fullmatch(names.origin(dotted(node))))


def _has_tensor(node: cst.CSTNode, names: Names) -> bool:
    if is_tensor(node, names):
        return True
    match node:
        case cst.Subscript(value=value) if names.origin(dotted(value)) in (*_TUPLES, _OPTIONAL, _UNION):
            return any(_has_tensor(one, names) for one in arguments(node))
        case cst.BinaryOperation(operator=cst.BitOr()):
            return _has_tensor(node.left, names) or _has_tensor(node.right, names)
    return False


def arguments(node: cst.Subscript) -> list[cst.BaseExpression]:
    """Return what a type is subscripted with."""
    found = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
    if len(found) == 1 and isinstance(found[0], cst.Tuple):
        return [one.value for one in found[0].elements]
    return found


class _Fill:
    """Puts types with shapes in the place of tensors."""

    def __init__(self, names: Names, spelling: Spelling, bound: Collection[str], matched: bool) -> None:
        self._names, self._spelling, self._bound, self._matched = names, spelling, bound, matched
        self.kinds: set[str] = set()
        self.binds: set[str] = set()

    def of(self, node: cst.BaseExpression, form: Form) -> cst.BaseExpression | None:
        """Return the annotation with what is known put in; None where that is nothing."""
        if is_tensor(node, self._names):
            return self._typed(form) if isinstance(form.of, TensorForm) else None
        match node:
            case cst.Subscript(value=value):
                origin = self._names.origin(dotted(value))
                parts = arguments(node)
                if origin in _TUPLES and isinstance(form.of, ItemsForm) and form.of.kind == "tuple":
                    forms = form.of.items
                    any_number = any(isinstance(part, cst.Ellipsis) for part in parts)
                    return self._tuple(node, parts, forms) if len(parts) == len(forms) and not any_number else None
                if origin in (_OPTIONAL, _UNION) and self._is_one(parts):
                    return self._part(node, parts, form)
            case cst.BinaryOperation(left=left, right=right) if self._is_one([left, right]):
                return self._part(node, [left, right], form)
        return None

    def _typed(self, form: Form) -> cst.BaseExpression | None:
        made = typed(form, self._spelling, self._bound, self._matched)
        if made is None:
            return None
        self.kinds |= made.kinds
        self.binds |= made.binds
        return cst.parse_expression(made.text)

    def _is_one(self, parts: list[cst.BaseExpression]) -> bool:
        """Say whether one of the alternatives is to be filled in, and the others are None."""
        return sum(not (isinstance(one, cst.Name) and one.value == "None") for one in parts) == 1

    def _part(self, node: cst.BaseExpression, parts: list[cst.BaseExpression], form: Form) -> cst.BaseExpression | None:
        part = next(one for one in parts if not (isinstance(one, cst.Name) and one.value == "None"))
        new = self.of(part, replace(form, optional=False))
        return None if new is None else _with(node, {part: new})

    def _tuple(
        self, node: cst.BaseExpression, parts: list[cst.BaseExpression], forms: tuple[Form, ...]
    ) -> cst.BaseExpression | None:
        made = {part: self.of(part, form) for part, form in zip(parts, forms, strict=True)}
        there = {part: new for part, new in made.items() if new is not None}
        return _with(node, there) if there else None


def _with(node: cst.BaseExpression, new: dict[cst.BaseExpression, cst.BaseExpression]) -> cst.BaseExpression:
    changed = node.visit(_Replace(new))
    assert isinstance(changed, cst.BaseExpression)
    return changed


class _Replace(cst.CSTTransformer):
    def __init__(self, new: dict[cst.BaseExpression, cst.BaseExpression]) -> None:
        super().__init__()
        self._new = new

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self._new.get(original_node, updated_node)
