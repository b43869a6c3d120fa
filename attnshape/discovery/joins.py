"""Finds the submodules that a method calls on the same input, and whose results it joins: the heads of an attention."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "stack", "sum"})
_APPENDING = frozenset({"append", "extend"})
_LISTS = re.compile(r"(\w+\.)*(ModuleList|list|tuple)")


def joined_attributes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the attributes that hold modules which a method calls on the same input, and whose results it joins.

    `torch.cat([head(x) for head in self.heads], -1)`, perhaps with a name for the list, or one made by `append`. Layers
    one after the other get what the layer before returned: `x = layer(x)`.

    >>> code = "def forward(self, x): return torch.cat([head(x) for head in self.heads], -1)"
    >>> list(joined_attributes(ast.parse(code).body[0]))
    ['heads']
    """
    nodes = list(ast.walk(method))
    lists: dict[str, list[str]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if found := _called_in(value):
                lists.setdefault(name, []).extend(found)
            case ast.For():
                for name, attribute in _appended(node):
                    lists.setdefault(name, []).append(attribute)
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and _last_name(node.func) in _JOINING:
            joined = node.args[0]
            if isinstance(joined, ast.Name):
                yield from lists.get(joined.id, [])
            else:
                yield from _called_in(joined)


def elements_of(owner: ast.ClassDef, attribute: str) -> Iterator[ast.Call]:
    """Yield the calls that make the elements which a class puts into an attribute: `nn.ModuleList([Head() for …])`."""
    for node in ast.walk(owner):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value):
                if name == attribute:
                    yield from _elements(value)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=name), attr="append"),
                args=[ast.Call() as element],
            ) if name == attribute:
                yield element


def _elements(value: ast.expr) -> Iterator[ast.Call]:
    match value:
        case ast.Call(func=function, args=[inner]) if _LISTS.fullmatch(ast.unparse(function)):
            yield from _elements(inner)
        case ast.ListComp(elt=ast.Call() as element) | ast.GeneratorExp(elt=ast.Call() as element):
            yield element
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from (one for one in elements if isinstance(one, ast.Call))
        case ast.BinOp(left=inner, op=ast.Mult()):
            yield from _elements(inner)


def _called_in(node: ast.expr) -> list[str]:
    """Return the attributes whose elements a comprehension calls: `[head(x) for head in self.heads]`."""
    match node:
        case ast.ListComp(elt=element, generators=[loop]) | ast.GeneratorExp(elt=element, generators=[loop]):
            return [attribute for name, attribute in _loop(loop.target, loop.iter) if _calls(element, name)]
    return []


def _appended(loop: ast.For) -> Iterator[tuple[str, str]]:
    """Yield the lists to which a loop appends what the elements of an attribute return, with the attribute.

    Nothing is yielded of a loop whose calls change what the next one gets.
    """
    for element, attribute in _loop(loop.target, loop.iter):
        inner = [node for statement in loop.body for node in ast.walk(statement)]
        calls = [node for node in inner if isinstance(node, ast.Call) and _calls(node, element)]
        read = {one.id for call in calls for one in ast.walk(call) if isinstance(one, ast.Name)} - {element}
        bound = {
            name.id
            for node in inner
            if isinstance(node, ast.Assign | ast.AugAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        appends = (node for node in inner if isinstance(node, ast.Call) and _last_name(node.func) in _APPENDING)
        for node in appends if calls and read.isdisjoint(bound) else ():
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                yield node.func.value.id, attribute


def _loop(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[str, str]]:
    """Yield the names that a loop gives to the elements of attributes, with these: `for i, head in enumerate(…)`."""
    match target, iterated:
        case ast.Name(id=name), ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            yield name, attribute
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[owner]):
            yield from _loop(inner, owner)
        case ast.Tuple(elts=parts), ast.Call(func=ast.Name(id="zip"), args=owners):
            for part, owner in zip(parts, owners, strict=False):
                yield from _loop(part, owner)


def _calls(node: ast.expr, name: str) -> bool:
    """Return whether an expression is a call of a name, or takes a part of one: `head(x)[0]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
