"""Which functions can be annotated, and why others can't."""

from __future__ import annotations

import libcst as cst

from attnshape.annotate.names import Names
from attnshape.annotate.tree import Definition, dotted, small_statements, stored_name

_SCRIPTED = ("torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.script_method")
_WITH_NONE = ("None", "object", "typing.Any", "typing_extensions.Any")
_AROUND = ("typing.Union", "typing.Annotated", "typing_extensions.Annotated")
_OVERLOAD = ("typing.overload", "typing_extensions.overload")


def unfit(definition: Definition, names: Names) -> str | None:
    """Return why nothing is written into a function, None where something may be."""
    decorators = [names.origin(one) for one in definition.decorators]
    if any(one in _SCRIPTED for one in decorators):
        return "TorchScript compiles it, and takes no such annotations"
    if "functools.wraps" in decorators:
        return "it stands in the place of another, whose types are its own"
    if any(one in _OVERLOAD for one in decorators):
        return "it is an overload"
    if definition.node.asynchronous is not None or _yields(definition.node):
        return "it runs piece by piece, as a generator or a coroutine"
    if _has_type_comment(definition.node):
        return "its types are in a comment"
    return None


def refusing_none(function: cst.FunctionDef, names: Names) -> list[str]:
    """Return the parameters that are None by default, and whose annotation doesn't say so."""
    given = function.params
    return [
        one.name.value
        for one in (*given.posonly_params, *given.params, *given.kwonly_params)
        if one.annotation is not None
        and isinstance(one.default, cst.Name)
        and one.default.value == "None"
        and not _allows_none(one.annotation.annotation, names)
    ]


def _allows_none(node: cst.BaseExpression, names: Names) -> bool:
    match node:
        case cst.SimpleString() if isinstance(node.evaluated_value, str):
            try:
                return _allows_none(cst.parse_expression(node.evaluated_value), names)
            except (cst.ParserSyntaxError, ValueError):
                return False
        case cst.BinaryOperation(left=left, operator=cst.BitOr(), right=right):
            return _allows_none(left, names) or _allows_none(right, names)
        case cst.Subscript(value=value):
            parts = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
            origin = names.origin(dotted(value))
            in_it = origin in _AROUND and any(_allows_none(part, names) for part in parts)
            return origin == "typing.Optional" or in_it
    return names.origin(dotted(node)) in _WITH_NONE


def not_its_own(function: cst.FunctionDef) -> frozenset[str]:
    """Return the names that a function declares global or nonlocal, or annotates as something that is no tensor."""
    found = set()
    for statement in statements(function):
        if isinstance(statement, (cst.Global, cst.Nonlocal)):
            found |= {one.name.value for one in statement.names}
    return frozenset(found)


def annotated(function: cst.FunctionDef) -> dict[str, list[cst.BaseExpression]]:
    """Return the annotations of a function's local variables, by name."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for statement in statements(function):
        if isinstance(statement, cst.AnnAssign) and isinstance(statement.target, cst.Name):
            found.setdefault(statement.target.value, []).append(statement.annotation.annotation)
    return found


def statements(function: cst.FunctionDef) -> list[cst.CSTNode]:
    """Return a function's own small statements, in order."""
    return list(small_statements(function.body.body))


def unpacked_names(statement: cst.CSTNode) -> list[cst.Name]:
    """Return the names that an assignment binds together with others, or that are bound otherwise than alone."""
    if stored_name(statement) is not None or not isinstance(statement, cst.Assign):
        return []
    return [name for target in statement.targets for name in _names(target.target)]


def _names(node: cst.CSTNode) -> list[cst.Name]:
    match node:
        case cst.Name():
            return [node]
        case cst.Tuple() | cst.List() | cst.Element() | cst.StarredElement():
            return [name for child in node.children for name in _names(child)]
    return []


def _has_type_comment(function: cst.FunctionDef) -> bool:
    body = function.body
    if not isinstance(body, cst.IndentedBlock):
        return False
    comments = [body.header.comment] + [
        line.comment for one in body.body[:1] for line in getattr(one, "leading_lines", ())
    ]
    return any(one is not None and one.value.replace(" ", "").startswith("#type:(") for one in comments)


def _yields(function: cst.FunctionDef) -> bool:
    finder = _Yields()
    function.body.visit(finder)
    return finder.found


class _Yields(cst.CSTVisitor):
    """Looks for `yield` in a function's own body."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def visit_Yield(self, node: cst.Yield) -> None:  # noqa: N802 - libcst's name
        self.found = True

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - libcst's name
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:  # noqa: N802 - libcst's name
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:  # noqa: N802 - libcst's name
        return False
