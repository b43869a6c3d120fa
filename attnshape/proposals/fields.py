"""Works out the fields of a configuration of which the name says nothing, by what the code does with them."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from attnshape.proposals import conventions
from attnshape.proposals.calls import last_name
from attnshape.proposals.source import syntax_tree, trees_with

_OF_LENGTHS = frozenset(("arange", "zeros", "ones", "full", "empty", "tril", "triu", "Embedding", "eye"))
_OF_WIDTHS = frozenset(("Linear", "LayerNorm", "RMSNorm"))
_DEVICE = re.compile(r"(\w+_)?device")
_ACCELERATED = re.compile(r"flash|xformers|triton|cuda|fused")
"""Choices that may need what isn't here."""


@dataclass(frozen=True)
class FieldUses:
    """What code does with the fields of a configuration; it may keep them under their own names."""

    trees: tuple[ast.AST, ...]

    @classmethod
    def of(cls, kind: type, parameter: str, module: ModuleType, *configs: type) -> FieldUses:
        """Return the uses in the code of a class that takes a configuration, and in the configuration's own."""
        own = (syntax_tree(config) for config in configs)
        return cls((*(tree for tree, _ in trees_with(kind, parameter, module)), *(tree for tree in own if tree)))

    def value(self, field: str, annotation: Any = inspect.Parameter.empty) -> str | None:
        """Return what a field may be: one of the values that it is compared with, or a size or number by its use."""
        if get_origin(annotation) is Literal:
            return repr(get_args(annotation)[0])
        if _DEVICE.fullmatch(field):
            return "'cpu'" if self._is_named_device(field) else None
        if choices := sorted(self._compared(field), key=lambda text: _ACCELERATED.search(text) is not None):
            return choices[0]
        kind = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        if kind in ("", "_empty", "int", "Optional"):
            size = self._size(field)
            width = "D" if conventions.may_be_width(field) else None
            return size or width or ("2" if kind == "int" else None)
        return {"float": "0.0", "bool": "False", "str": "''"}.get(kind)

    def layer(self, field: str) -> str | None:
        """Return the layer that a field stands for if the code calls it: `self.query = config.query`, `self.query(x)`.

        A field whose name is that of a dropout, or of an activation, is one that changes nothing.
        """
        kept = [
            node.targets for node in self._nodes() if isinstance(node, ast.Assign) and _is_attribute(node.value, field)
        ]
        names = {last_name(target) for targets in kept for target in targets} - {""}
        if not any(isinstance(node, ast.Call) and last_name(node.func) in names for node in self._nodes()):
            return None
        is_map = conventions.constant_of(field) is None and conventions.layer_of(field) is None
        return "torch.nn.Linear(D, D)" if is_map else "torch.nn.Identity()"

    def _nodes(self) -> Iterator[ast.AST]:
        for tree in self.trees:
            yield from _all_nodes(tree)

    def _compared(self, field: str) -> Iterator[str]:
        for node in self._nodes():
            match node:
                case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()], comparators=[right]):
                    if last_name(left) == field:
                        values = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
                        yield from (ast.unparse(one) for one in values if _is_text(one))
                case ast.Match(subject=subject, cases=cases) if last_name(subject) == field:
                    values = [one.pattern.value for one in cases if isinstance(one.pattern, ast.MatchValue)]
                    yield from (ast.unparse(one) for one in values if _is_text(one))

    def _is_named_device(self, field: str) -> bool:
        """Return whether code needs a device's name, and no device does not do: `"cuda" in device`."""
        for node in self._nodes():
            match node:
                case ast.Call(func=ast.Attribute(attr="device"), args=[owner, *_]) if last_name(owner) == field:
                    return True
                case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[owner]) if last_name(owner) == field:
                    return True
                case ast.Attribute(value=owner, attr="startswith" | "type" | "split") if last_name(owner) == field:
                    return True
        return False

    def _size(self, field: str) -> str | None:
        for node in self._nodes():
            match node:
                case ast.Call(func=function, args=args) if last_name(function) in _OF_LENGTHS:
                    if field in map(last_name, _flat(args)):
                        return "L"
                case ast.Call(func=function, args=args) if last_name(function) in _OF_WIDTHS:
                    if field in map(last_name, args):
                        return "D"
                case ast.Compare(left=left, comparators=[right]):
                    if last_name(left) == field and _is_length(right):
                        return "L"
                    if last_name(right) == field and _is_length(left):
                        return "L"
        return None


@functools.lru_cache(maxsize=64)
def _all_nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _flat(args: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for one in args:
        yield from one.elts if isinstance(one, ast.Tuple | ast.List) else [one]


def _is_attribute(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_length(node: ast.expr) -> bool:
    """Return whether an expression is the size of an axis: `x.size(1)`, `x.shape[1]`, `seq_len`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="size"), args=[_]) | ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
    name = last_name(node)
    return bool(name) and conventions.symbol_of_axis(name) == "L"
