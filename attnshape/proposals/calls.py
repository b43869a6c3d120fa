"""Reads how a module's own code constructs a class, and with what it compares the parameters of its constructor."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from attnshape.proposals import conventions
from attnshape.proposals.source import signature_parameters, syntax_tree

_LAYERS = frozenset(
    ("Linear", "LayerNorm", "RMSNorm", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d", "Embedding", "GRU", "LSTM")
)
ELEMENTS = 3
"""How many elements a collection has."""
_JOINING = frozenset(("cat", "concat", "concatenate", "stack", "combinations"))
_COUNTING = frozenset(("range", "arange", "zeros", "ones", "tril", "triu", "repeat", "expand"))


def constructing_calls(kind: type, module: ModuleType) -> Iterator[str]:
    """Yield the arguments with which a module's code constructs a class, with sizes in the place of its numbers.

    An optional argument whose value isn't known is left out; a call is, where that is a required one.
    """
    tree = syntax_tree(module)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None else []
    for call in sorted(calls, key=lambda node: node.lineno):
        if last_name(call.func) == kind.__name__ and (text := _arguments(kind, call, module)) is not None:
            yield text


def constructs(kind: type, other: type) -> bool:
    """Return whether a class's code constructs another."""
    tree = syntax_tree(kind)
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call)) if tree is not None else ()
    return any(last_name(call.func) == other.__name__ for call in calls)


def _arguments(kind: type, call: ast.Call, module: ModuleType) -> str | None:
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        return None
    try:
        signature = inspect.signature(kind)
        bound = signature.bind(*call.args, **{one.arg: one.value for one in call.keywords if one.arg is not None})
    except (TypeError, ValueError):
        return None
    words: list[str] = []
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        text = conventions.size_of(name) or conventions.constant_of(name) or value_text(value, module)
        if text is not None:
            words.append(f"{name}={text}")
        elif parameter.default is parameter.empty:
            return None
    return ", ".join(words)


def sizes_passed(kind: type, parameter: str, module: ModuleType) -> Iterator[str]:
    """Yield the sizes that a module's calls compute for a parameter: the width of a head for `out=int(dim / heads)`."""
    for value in _values_passed(kind, parameter, module):
        match value:
            case ast.Call(func=ast.Name(id="int"), args=[inner]):
                value = inner
        match value:
            case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right):
                if [conventions.size_of(last_name(one)) for one in (left, right)] == ["D", "H"]:
                    yield "Dk"


def is_passed(kind: type, parameter: str, module: ModuleType) -> bool:
    """Return whether each of a module's calls that construct a class gives a parameter a variable, and one does."""
    values = list(_values_passed(kind, parameter, module))
    return bool(values) and all(isinstance(value, ast.Name | ast.Attribute) for value in values)


def _values_passed(kind: type, parameter: str, module: ModuleType) -> Iterator[ast.expr | None]:
    """Yield what a module's calls that construct a class give a parameter; None where they don't."""
    names = [p.name for p in signature_parameters(kind)]
    tree = syntax_tree(module)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and last_name(node.func) == kind.__name__:
            by_place = dict(zip(names, node.args, strict=False))
            by_name = {keyword.arg: keyword.value for keyword in node.keywords}
            yield by_name.get(parameter, by_place.get(parameter))


def value_text(node: ast.expr, module: ModuleType) -> str | None:
    """Return the text of an expression that means the same outside of its function, or a size by its name."""
    match node:
        case ast.Constant():
            return ast.unparse(node)
        case ast.IfExp(body=body, orelse=orelse):
            return value_text(orelse, module) or value_text(body, module)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if all(isinstance(part, ast.Constant) for part in parts):
            return ast.unparse(node)
        case ast.Name() | ast.Attribute():
            if _is_global(node, module):
                return ast.unparse(node)
            return conventions.size_of(last_name(node)) or conventions.constant_of(last_name(node))
    return None


def compared_values(kind: type, parameter: str, module: ModuleType) -> Iterator[str]:
    """Yield the values with which a class's code compares a parameter: `kind == "short"`, `self.kind in ("a", "b")`."""
    for one in inspect.getmro(kind)[:-1]:
        tree = syntax_tree(one)
        for node in ast.walk(tree) if tree is not None else ():
            match node:
                case ast.Compare(left=left, comparators=[value]) if last_name(left) == parameter:
                    values = value.elts if isinstance(value, ast.Tuple | ast.List | ast.Set) else [value]
                    yield from (ast.unparse(value) for value in values if _is_choice(value, module))


def used_as(kind: type, parameter: str) -> Iterator[str]:
    """Yield the sizes that a parameter of a constructor may be, by what the class's code does with it.

    It is what the name says under which the code keeps it, `self.heads = parts`. It is a width where a layer gets it,
    that of a head where it is multiplied by their number, a length where it counts rows or iterations, a small number
    where it ends a slice or is a number of neighbours, and false where the code tests it: `if self.shifted`. It has
    several widths where the code goes through it in parts, `for inner, outer in sizes`, or asks for its length.
    """
    own = [one for one in inspect.getmro(kind)[:-1] if not one.__module__.startswith("torch.")]
    trees = filter(None, map(syntax_tree, own))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {parameter}
    for node in nodes:
        if isinstance(node, ast.Assign) and last_name(node.value) in names:
            names |= {last_name(target) for target in node.targets} - {""}
    if any(_is_length_of(node, names) for node in nodes):
        yield from (f"[{', '.join(['D'] * (ELEMENTS - 1))}, {last}]" for last in ("D", "1"))
        return
    kept = (conventions.size_of(name) for name in sorted(names - {parameter}))
    found: dict[str, None] = dict.fromkeys(size for size in kept if size is not None)
    for node in nodes:
        match node:
            case ast.Call(func=function, args=args) if last_name(function) in _LAYERS:
                passed = [*args, *(keyword.value for keyword in node.keywords)]
                found |= {"D": None} if names & {last_name(one) for one in passed} else {}
            case ast.Call(func=function, args=args) if last_name(function) in _COUNTING:
                inside = [last_name(inner) for one in args for inner in ast.walk(one) if isinstance(inner, ast.expr)]
                found |= {"L": None} if names & set(inside) else {}
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                factors = [last_name(left), last_name(right)]
                others = [conventions.size_of(name) for name in factors if name not in names]
                found |= {"Dk": None} if others == ["H"] else {}
            case ast.Slice(upper=upper) if upper is not None and last_name(upper) in names:
                found |= {"2": None}
            case ast.Call(func=function, args=args) if last_name(function) in ("topk", "knn"):
                passed = [*args, *(keyword.value for keyword in node.keywords)]
                found |= {"2": None} if names & {last_name(one) for one in passed} else {}
    yield from found
    if (parts := parts_of_elements(kind, parameter)) > 1:
        yield f"[({', '.join(['D'] * parts)})] * {ELEMENTS}"
    if any(names & set(tested_names(node)) for node in nodes):
        yield "False"


def _is_length_of(node: ast.AST, names: Collection[str]) -> bool:
    """Return whether code asks how many elements something of these names has."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[owner]):
            return last_name(owner) in names
    return False


def tested_names(node: ast.AST) -> list[str]:
    """Return the names of what a condition tests for being true: `if a and not b`."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.UnaryOp(op=ast.Not(), operand=test):
            parts = test.values if isinstance(test, ast.BoolOp) else [test]
            return [last_name(one) for one in parts]
    return []


def may_be_left_out(function: Any, parameter: str) -> bool:
    """Return whether a function's code asks whether a parameter is None."""
    tree = syntax_tree(function)
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Is | ast.IsNot)
        and last_name(node.left) == parameter
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
        for node in (ast.walk(tree) if tree is not None else ())
    )


def takes_pair(kind: type, parameter: str) -> bool:
    """Return whether a class's code reads a parameter as a pair: `size[0]`, or `height, width = size`."""
    for one in inspect.getmro(kind)[:-1]:
        tree = syntax_tree(one)
        for node in ast.walk(tree) if tree is not None else ():
            match node:
                case ast.Subscript(value=owner, slice=ast.Constant(value=0 | 1)) if last_name(owner) == parameter:
                    return True
                case ast.Assign(targets=[ast.Tuple(elts=[_, _])], value=owner) if last_name(owner) == parameter:
                    return True
    return False


def is_squared(kind: type, parameter: str) -> bool:
    """Return whether a class's code squares a parameter, as the side of a map: `size * size`, `self.size**2`."""
    tree = syntax_tree(kind)
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if last_name(left) == last_name(right) == parameter:
                return True
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)) if last_name(left) == parameter:
                return True
    return False


def looked_up(function: Any, kind: Any) -> set[str]:
    """Return the parameters of a call that are indices, since an embedding of the class is the first layer to get them.

    That is `self.of_times(gaps)` where the constructor has `self.of_times = nn.Embedding(…)`.
    """
    constructor, tree = syntax_tree(kind) if inspect.isclass(kind) else None, syntax_tree(function)
    embeddings = {
        last_name(target)
        for node in (ast.walk(constructor) if constructor is not None else ())
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if last_name(node.value.func) == "Embedding"
    }
    return {
        last_name(node.args[0])
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call) and last_name(node.func) in embeddings and node.args
    } & {p.name for p in signature_parameters(function)}


def parts_of_elements(function: Any, parameter: str) -> int:
    """Return how many values each element of a collection has that a parameter is; 0 if it is none.

    The code goes through a collection of pairs by `for state, action in pairs`, and takes one of tensors as a whole:
    `torch.cat(tensors)`, `combinations(tensors, 2)`.
    """
    tree = syntax_tree(function)
    nodes = list(ast.walk(tree)) if tree is not None else []
    names = {parameter}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=alias)], value=ast.Name(id=name)) if name in names:
                names.add(alias)
    for node in nodes:
        match node:
            case (
                ast.For(target=ast.Tuple(elts=parts), iter=owner)
                | ast.comprehension(target=ast.Tuple(elts=parts), iter=owner)
            ) if isinstance(owner, ast.Name) and owner.id in names:
                return len(parts)
            case ast.Call(func=called, args=[ast.Name(id=name), *_]) if last_name(called) in _JOINING and name in names:
                return 1
    return 0


def unpacked_parts(function: Any, parameter: str) -> tuple[str, ...]:
    """Return the names to which a function unpacks a parameter, `nodes, edges = data`; none if it doesn't."""
    tree = syntax_tree(function)
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Name(id=name)) if name == parameter:
                return tuple(one.id for one in targets if isinstance(one, ast.Name))
    return ()


def _is_choice(node: ast.expr, module: ModuleType) -> bool:
    return (isinstance(node, ast.Constant) and isinstance(node.value, str)) or (
        isinstance(node, ast.Attribute) and _is_global(node, module)
    )


def _is_global(node: ast.expr, module: ModuleType) -> bool:
    """Return whether a name, or the first of a chain of attributes, is one of the module's own."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and hasattr(module, node.id)


def last_name(node: ast.expr) -> str:
    """Return the name of a function or variable without what it is an attribute of; "" of any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
