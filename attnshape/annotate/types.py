"""jaxtyping types as text: new ones, and those that fill in an annotation that the file has already."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import libcst as cst

from attnshape.annotate.syntax import Tree, dotted_name, parse_annotation
from attnshape.comments.annotations import kind_of_dtype
from attnshape.observation.forms import ANY_NUMBER, AxisForm, Form, ItemsForm, TensorForm

UNKNOWN = "_"
_SYMBOL = re.compile(r"[^\W\d]\w*")
_PRODUCT = re.compile(r"[^\W\d]\w*(\*[^\W\d]\w*)+")
_FUNCTIONS = ("min", "max", "abs")
_PLAIN_TENSOR = re.compile(r"torch\.(cuda\.)?[A-Z]?[a-zA-Z0-9]*Tensor")
_TUPLES = ("tuple", "typing.Tuple")
_OPTIONAL, _UNION = "typing.Optional", "typing.Union"


@dataclass(frozen=True)
class DimsText:
    """The axes of a tensor as the words of a dims string."""

    words: tuple[str, ...]
    binds: frozenset[str]
    """The size symbols that have a value once jaxtyping has checked the words."""

    @property
    def text(self) -> str:
        """The dims string: `B H Lq Dk`."""
        return " ".join(self.words)

    @property
    def is_informative(self) -> bool:
        """Whether any axis is known, or there is none."""
        return not self.words or any(word not in (UNKNOWN, ANY_NUMBER) for word in self.words)


def axis_text(axis: AxisForm, include_matched: bool) -> str | None:
    """Return an axis's expression without spaces, None if it isn't known well enough.

    >>> axis_text(AxisForm("H * Dk", "verified"), False), axis_text(AxisForm("L", "matched"), False)
    ('H*Dk', None)
    """
    if axis.text is None or (axis.known == "matched" and not include_matched):
        return None
    text = axis.text if axis.text == ANY_NUMBER else axis.text.replace(" ", "")
    return None if any(keyword.iskeyword(name) for name in _SYMBOL.findall(text)) else text


def format_dims(axes: Collection[AxisForm], bound: Collection[str], include_matched: bool) -> DimsText:
    """Return the dims of axes where the size symbols in `bound` have values already.

    jaxtyping evaluates an expression only from symbols that were bound before it. Elsewhere the expression becomes a
    name that isn't checked.

    >>> axes = [AxisForm("B", "verified"), AxisForm("3*D", "verified"), AxisForm("H*Dk", "verified"), AxisForm("4")]
    >>> format_dims(axes, {"D"}, False).text
    'B 3*D _HDk 4'
    """
    texts = [axis_text(axis, include_matched) for axis in axes]
    return DimsText(
        tuple(_word(text, bound) for text in texts),
        frozenset(text for text in texts if text is not None and text.isidentifier() and not text.startswith("_")),
    )


def _word(text: str | None, bound: Collection[str]) -> str:
    if text is None:
        return UNKNOWN
    if text == ANY_NUMBER or text.isidentifier() or text.isdecimal():
        return text
    if all(name in bound or name in _FUNCTIONS for name in _SYMBOL.findall(text)):
        return text
    return UNKNOWN + text.replace("*", "") if _PRODUCT.fullmatch(text) else UNKNOWN


def symbols_in(text: str) -> list[str]:
    """Return the size symbols in an axis's expression."""
    return [name for name in _SYMBOL.findall(text) if name not in _FUNCTIONS]


@dataclass(frozen=True)
class TypeText:
    """A type as text, with the jaxtyping kinds that it uses and the size symbols that it is certain to bind."""

    text: str
    kinds: frozenset[str]
    binds: frozenset[str]


def kind_of_dtypes(dtypes: Collection[str]) -> str:
    """Return jaxtyping's name for tensors of these dtypes.

    >>> kind_of_dtypes(["float32", "bfloat16"]), kind_of_dtypes(["uint8"]), kind_of_dtypes(["int64", "bool"])
    ('Float', 'UInt', 'Shaped')
    """
    kinds = {kind_of_dtype(name) for name in dtypes}
    return kinds.pop() if len(kinds) == 1 else "Shaped"


def format_type(form: Form | None, tree: Tree, bound: Collection[str], include_matched: bool) -> TypeText | None:
    """Return the type of a variable as the file spells it, None if too little is known.

    `bound` are the size symbols that have values by then.
    """
    match form.of if form is not None else None:
        case TensorForm(dtypes=dtypes, axes=axes):
            dims = format_dims(axes, bound, include_matched)
            if not dims.is_informative:
                return None
            kind = kind_of_dtypes(dtypes)
            text = f'{tree.spelling("jaxtyping", kind)}[{tree.spelling("torch", "Tensor")}, "{dims.text}"]'
            made = TypeText(text, frozenset([kind]), dims.binds)
        case ItemsForm(kind="tuple", items=items) if items:
            parts = [format_type(item, tree, bound, include_matched) for item in items]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            inside = ", ".join(part.text for part in known)
            made = TypeText(f"tuple[{inside}]", frozenset().union(*(part.kinds for part in known)), frozenset())
        case _:
            return None
    if form is not None and form.optional:
        return TypeText(f"{made.text} | None", made.kinds, frozenset())
    return made


@dataclass(frozen=True)
class ExistingAnnotation:
    """An annotation in the source."""

    node: cst.BaseExpression
    """Its expression; for a quoted annotation the expression in the quotes."""
    quote: str
    """The quotes around it, empty if there are none."""
    content: Literal["signature", "plain", "other"]
    """Whether it has a shape, a tensor without one, or neither."""


def read_annotation(node: cst.BaseExpression, tree: Tree) -> ExistingAnnotation:
    """Return what an annotation of the source says."""
    quote = ""
    if isinstance(node, cst.SimpleString) and not node.prefix and isinstance(node.evaluated_value, str):
        parsed = parse_annotation(node.evaluated_value)
        if parsed is None:
            return ExistingAnnotation(node, "", "other")
        quote, node = node.quote, parsed
    if _has_signature(node, tree):
        return ExistingAnnotation(node, quote, "signature")
    return ExistingAnnotation(node, quote, "plain" if _has_tensor(node, tree) else "other")


def fill_in(
    existing: ExistingAnnotation, form: Form, tree: Tree, bound: Collection[str], include_matched: bool
) -> TypeText | None:
    """Return an annotation with shapes in place of its plain tensors; None if nothing of it is known.

    The rest of it stays: `Optional[…]`, and the parts of a tuple of which nothing is known.
    """
    filling = _Filling(tree, bound, include_matched)
    node = filling.fill(existing.node, form)
    if node is None:
        return None
    text = cst.Module([]).code_for_node(node)
    alone = isinstance(existing.node, (cst.Name, cst.Attribute)) and not form.optional
    if existing.quote:
        other = "'" if '"' in existing.quote else '"'
        text = existing.quote + text.replace('"', other).replace("'", other) + existing.quote
    return TypeText(text, frozenset(filling.kinds), frozenset(filling.binds if alone else ()))


def dims_in(node: cst.CSTNode, tree: Tree) -> list[str]:
    """Return the dims string of each jaxtyping type in an annotation."""
    if isinstance(node, cst.Subscript) and _is_jaxtyping(node, tree):
        parts = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
        if len(parts) == 2 and isinstance(parts[1], cst.SimpleString):
            return [str(parts[1].evaluated_value)]
    return [found for child in node.children for found in dims_in(child, tree)]


def symbols_bound_by(annotation: ExistingAnnotation, tree: Tree) -> frozenset[str]:
    """Return the size symbols that have values once a tensor was checked against an annotation with a shape."""
    if not isinstance(annotation.node, cst.Subscript) or not _is_jaxtyping(annotation.node, tree):
        return frozenset()
    words = [word for text in dims_in(annotation.node, tree) for word in text.split()]
    return frozenset(word for word in words if word.isidentifier() and word[0] != "_")


def _is_jaxtyping(node: cst.Subscript, tree: Tree) -> bool:
    return tree.origin(dotted_name(node.value)).rpartition(".")[0] == "jaxtyping"


def _has_signature(node: cst.CSTNode, tree: Tree) -> bool:
    own = isinstance(node, cst.Subscript) and _is_jaxtyping(node, tree)
    return own or any(_has_signature(child, tree) for child in node.children)


def _is_tensor(node: cst.CSTNode, tree: Tree) -> bool:
    """Return whether an annotation is a tensor without a shape: `Tensor`, `torch.FloatTensor`."""
    return isinstance(node, (cst.Name, cst.Attribute)) and bool(_PLAIN_TENSOR.fullmatch(tree.origin(dotted_name(node))))


def _has_tensor(node: cst.CSTNode, tree: Tree) -> bool:
    if _is_tensor(node, tree):
        return True
    match node:
        case cst.Subscript(value=value) if tree.origin(dotted_name(value)) in (*_TUPLES, _OPTIONAL, _UNION):
            return any(_has_tensor(one, tree) for one in type_arguments(node))
        case cst.BinaryOperation(operator=cst.BitOr()):
            return _has_tensor(node.left, tree) or _has_tensor(node.right, tree)
    return False


def type_arguments(node: cst.Subscript) -> list[cst.BaseExpression]:
    """Return the arguments of a subscripted type."""
    found = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
    if len(found) == 1 and isinstance(found[0], cst.Tuple):
        return [one.value for one in found[0].elements]
    return found


class _Filling:
    """Puts types with shapes in place of plain tensors."""

    def __init__(self, tree: Tree, bound: Collection[str], include_matched: bool) -> None:
        self._tree, self._bound, self._include_matched = tree, bound, include_matched
        self.kinds: set[str] = set()
        self.binds: set[str] = set()

    def fill(self, node: cst.BaseExpression, form: Form) -> cst.BaseExpression | None:
        """Return the annotation with all known shapes filled in; None if no shape is known."""
        if _is_tensor(node, self._tree):
            return self._type(form) if isinstance(form.of, TensorForm) else None
        match node:
            case cst.Subscript(value=value):
                origin = self._tree.origin(dotted_name(value))
                parts = type_arguments(node)
                if origin in _TUPLES and isinstance(form.of, ItemsForm) and form.of.kind == "tuple":
                    if len(parts) != len(form.of.items) or any(isinstance(part, cst.Ellipsis) for part in parts):
                        return None
                    return self._replace(node, list(zip(parts, form.of.items, strict=True)))
                if origin in (_OPTIONAL, _UNION):
                    return self._alternative(node, parts, form)
            case cst.BinaryOperation(left=left, right=right):
                return self._alternative(node, [left, right], form)
        return None

    def _type(self, form: Form) -> cst.BaseExpression | None:
        made = format_type(form, self._tree, self._bound, self._include_matched)
        if made is None:
            return None
        self.kinds |= made.kinds
        self.binds |= made.binds
        return cst.parse_expression(made.text)

    def _alternative(
        self, node: cst.BaseExpression, parts: list[cst.BaseExpression], form: Form
    ) -> cst.BaseExpression | None:
        """Fill in the one alternative that isn't None."""
        others = [one for one in parts if not (isinstance(one, cst.Name) and one.value == "None")]
        return self._replace(node, [(others[0], replace(form, optional=False))]) if len(others) == 1 else None

    def _replace(
        self, node: cst.BaseExpression, parts: list[tuple[cst.BaseExpression, Form]]
    ) -> cst.BaseExpression | None:
        filled = {part: new for part, form in parts if (new := self.fill(part, form)) is not None}
        if not filled:
            return None
        changed = node.visit(_Replacement(filled))
        assert isinstance(changed, cst.BaseExpression)
        return changed


class _Replacement(cst.CSTTransformer):
    def __init__(self, new: dict[cst.BaseExpression, cst.BaseExpression]) -> None:
        super().__init__()
        self._new = new

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self._new.get(original_node, updated_node)
