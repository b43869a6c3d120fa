"""jaxtyping types as text: new ones, and those that fill in an annotation that the file has already."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
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
    return DimsText(tuple(_word(text, bound) for text in texts), _symbols_alone(text or "" for text in texts))


def _symbols_alone(words: Iterable[str]) -> frozenset[str]:
    """Return the words that are a size symbol and nothing else, which jaxtyping binds."""
    return frozenset(word for word in words if word.isidentifier() and not word.startswith("_"))


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
    if form is None:
        return None
    match form.of:
        case TensorForm(dtypes=dtypes, axes=axes):
            dims = format_dims(axes, bound, include_matched)
            if dims.words and all(word in (UNKNOWN, ANY_NUMBER) for word in dims.words):
                return None
            kind = kind_of_dtypes(dtypes)
            text = f'{tree.spelling("jaxtyping", kind)}[{tree.spelling("torch", "Tensor")}, "{dims.text}"]'
            kinds, binds = frozenset([kind]), dims.binds
        case ItemsForm(kind="tuple", items=items) if items:
            types = [format_type(item, tree, bound, include_matched) for item in items]
            known = [type_ for type_ in types if type_ is not None]
            if len(known) < len(types):
                return None
            text = f"tuple[{', '.join(type_.text for type_ in known)}]"
            kinds, binds = frozenset().union(*(type_.kinds for type_ in known)), frozenset()
        case _:
            return None
    return TypeText(f"{text} | None", kinds, frozenset()) if form.optional else TypeText(text, kinds, binds)


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
    types = {
        node: new
        for node, part in _plain_tensors(existing.node, form, tree)
        if (new := format_type(part, tree, bound, include_matched)) is not None
    }
    if not types:
        return None
    node = existing.node.visit(_Replacement({node: cst.parse_expression(new.text) for node, new in types.items()}))
    assert isinstance(node, cst.BaseExpression)
    text = cst.Module([]).code_for_node(node)
    alone = isinstance(existing.node, (cst.Name, cst.Attribute)) and not form.optional
    if existing.quote:
        other = "'" if '"' in existing.quote else '"'
        text = existing.quote + text.replace('"', other).replace("'", other) + existing.quote
    kinds = frozenset().union(*(new.kinds for new in types.values()))
    return TypeText(text, kinds, frozenset().union(*(new.binds for new in types.values() if alone)))


def dims_in(node: cst.CSTNode, tree: Tree) -> list[str]:
    """Return the dims string of each jaxtyping type in an annotation."""
    if isinstance(node, cst.Subscript) and _is_jaxtyping(node, tree):
        match type_arguments(node):
            case [_, cst.SimpleString() as dims]:
                return [str(dims.evaluated_value)]
    return [text for child in node.children for text in dims_in(child, tree)]


def symbols_bound_by(annotation: ExistingAnnotation, tree: Tree) -> frozenset[str]:
    """Return the size symbols that have values once a tensor was checked against an annotation with a shape."""
    if not isinstance(annotation.node, cst.Subscript) or not _is_jaxtyping(annotation.node, tree):
        return frozenset()
    return _symbols_alone(word for text in dims_in(annotation.node, tree) for word in text.split())


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
            return any(_has_tensor(part, tree) for part in type_arguments(node))
        case cst.BinaryOperation(operator=cst.BitOr()):
            return _has_tensor(node.left, tree) or _has_tensor(node.right, tree)
    return False


def type_arguments(node: cst.Subscript) -> list[cst.BaseExpression]:
    """Return the arguments of a subscripted type."""
    parts = [element.slice.value for element in node.slice if isinstance(element.slice, cst.Index)]
    match parts:
        case [cst.Tuple(elements=elements)]:
            return [element.value for element in elements]
    return parts


def _plain_tensors(node: cst.BaseExpression, form: Form, tree: Tree) -> Iterator[tuple[cst.BaseExpression, Form]]:
    """Yield the tensors without a shape in an annotation, with what is known of each."""
    if _is_tensor(node, tree):
        if isinstance(form.of, TensorForm):
            yield node, form
        return
    alternatives: Sequence[cst.BaseExpression] = ()
    match node:
        case cst.Subscript(value=value):
            origin, parts = tree.origin(dotted_name(value)), type_arguments(node)
            if origin in _TUPLES and isinstance(form.of, ItemsForm) and form.of.kind == "tuple":
                if len(parts) == len(form.of.items) and not any(isinstance(part, cst.Ellipsis) for part in parts):
                    for part, item in zip(parts, form.of.items, strict=True):
                        yield from _plain_tensors(part, item, tree)
            elif origin in (_OPTIONAL, _UNION):
                alternatives = parts
        case cst.BinaryOperation(left=left, right=right):
            alternatives = (left, right)
    others = [part for part in alternatives if not (isinstance(part, cst.Name) and part.value == "None")]
    if len(others) == 1:
        yield from _plain_tensors(others[0], replace(form, optional=False), tree)


class _Replacement(cst.CSTTransformer):
    def __init__(self, new: dict[cst.BaseExpression, cst.BaseExpression]) -> None:
        super().__init__()
        self._new = new

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self._new.get(original_node, updated_node)
