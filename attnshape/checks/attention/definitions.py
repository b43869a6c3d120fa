"""Finds where what a call reads is defined, such as `self.scale` in a constructor, and where its result is used."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

from executing import Source

from attnshape.checks.attention.subject import Subject
from attnshape.checks.interventions.replay import OutputRef, ReplayedCall
from attnshape.tracing import operations as ops
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.source_locations import SourceLocator
from attnshape.tracing.syntax_nodes import enclosing

_Name = ast.Name | ast.Attribute
_OPTIONS = ("scale", "dim")
"""What a number is passed as; next to it other numbers don't matter, such as the dropout's."""


def number_definition(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the number that a call reads is assigned to a variable or an attribute, if it is one."""
    return _definition(subject, ref, _numbers)


def module_definition(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the module that makes a call is assigned to an attribute, if it is one of torch's own."""
    return _definition(subject, ref, _modules)


def constant_definition(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the buffer or parameter that a call reads is assigned, or registered, if it reads one."""
    return _definition(subject, ref, _constants)


def index_definition(subject: Subject, ref: OutputRef) -> SourceLocation | None:
    """Return where the variable is assigned by which a call selects, such as `columns` of `x[..., columns]`."""
    return _definition(subject, ref, _indices)


def attribute_definition(owner: type, attribute: str) -> SourceLocation | None:
    """Return where a class, or the nearest of its base classes that does, assigns an attribute, if it does so once."""
    found = _assigned(owner, attribute)
    return found[0] if len(found) == 1 else None


def attribute_change(owner: type, attribute: str) -> SourceLocation | None:
    """Return where a method other than the constructor first assigns an attribute of `self`."""
    methods = (place for place in _assigned(owner, attribute) if not place.function.endswith("__init__"))
    return next(methods, None)


def _assigned(owner: type, attribute: str) -> list[SourceLocation]:
    """Return where a class, or the nearest of its base classes that does, assigns an attribute."""
    name = ast.Attribute(ast.Name("self", ast.Load()), attribute, ast.Load())
    for cls in owner.__mro__:
        file = _file(cls)
        tree = Source.for_filename(file).tree if file else None
        classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)) if tree is not None else ()
        found = [place for node in classes if node.name == cls.__name__ for place in _in_class(node, name, file)]
        if found:
            return found
    return []


def _file(cls: type) -> str:
    """Return the file of a class; empty if it is built in."""
    try:
        return inspect.getsourcefile(cls) or ""
    except TypeError:
        return ""


def _definition(
    subject: Subject, ref: OutputRef, names_in: Callable[[ReplayedCall, ast.AST], Iterator[_Name]]
) -> SourceLocation | None:
    event = subject.base.event(ref)
    if not event.calls:
        return None
    place, node = SourceLocator().find(event.calls[0])
    if node is None:
        return None
    step = subject.step(ref)
    owner = subject.experiment.structure.classes.get(step.module or "") if step is not None else None
    found = [assigned for name in names_in(event, node) for assigned in _assignments(name, place, owner)]
    computed = {(step.location.file, step.location.line) for step in subject.experiment.raw.steps if step.location}
    # a tensor that this run computes is no constant
    found = [one for one in found if (one.file, one.line) not in computed]
    return found[0] if len(found) == 1 and found[0].line != place.line else None


def _numbers(call: ReplayedCall, node: ast.AST) -> Iterator[_Name]:
    """Yield the variables and attributes that may hold the number among a call's arguments."""
    values = [*call.args, *call.keywords.values()]
    if not any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return
    written: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, right=right):
            written = [left, right]
        case ast.AugAssign(value=value):
            written = [value]
        case ast.Call(args=arguments, keywords=words):
            named = [word.value for word in words if word.arg in _OPTIONS]
            written = named or [*arguments, *(word.value for word in words)]
    yield from (one for one in written if _is_name(one))


def _modules(call: ReplayedCall, node: ast.AST) -> Iterator[_Name]:
    """Yield the attribute of `self` that a node calls."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self")) as function):
            yield function


def _constants(call: ReplayedCall, node: ast.AST) -> Iterator[_Name]:
    """Yield the attributes of `self` in a node that are buffers or parameters."""
    state = {source.rpartition(".")[2] for sources in call.sources for source in sources if isinstance(source, str)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in state and _is_name(part):
            yield part
            return


def _indices(call: ReplayedCall, node: ast.AST) -> Iterator[_Name]:
    """Yield the variables that are whole indices of a subscript."""
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        yield from (part for part in parts if _is_name(part))


def _is_name(node: ast.AST) -> TypeGuard[_Name]:
    """Return whether a node is a variable, or an attribute of `self`."""
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    )


def _assignments(name: _Name, place: SourceLocation, owner: type | None) -> Iterator[SourceLocation]:
    """Yield where a variable is assigned in its function, or an attribute of `self` in its class or a base class.

    The class is that of the module that makes the call, its `owner`, which may inherit the code around the name.
    """
    if isinstance(name, ast.Name):
        function = enclosing(name, ast.FunctionDef)
        if function is not None:
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and any(_same(target, name) for target in node.targets):
                    yield _location(node.value, place.file, place.function)
        return
    definition = enclosing(name, ast.ClassDef)
    inherited = (cls.__name__ for cls in owner.__mro__ if _file(cls) == place.file) if owner is not None else ()
    if owner is not None and getattr(definition, "name", "") in inherited:
        yield from _assigned(owner, name.attr)
        return
    while isinstance(definition, ast.ClassDef):
        found = list(_in_class(definition, name, place.file))
        yield from found
        definition = None if found else _base_of(definition)


def _in_class(definition: ast.ClassDef, name: ast.Attribute, file: str) -> Iterator[SourceLocation]:
    for method in (part for part in definition.body if isinstance(part, ast.FunctionDef)):
        for node in ast.walk(method):
            value: ast.AST | None = None
            match node:
                case ast.Assign(targets=targets) if any(_same(target, name) for target in targets):
                    value = node.value
                case ast.AnnAssign(target=target) if _same(target, name):
                    value = node.value
                case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=text), *_]):
                    value = node if text == name.attr else None
            if value is not None:
                yield _location(value, file, f"{definition.name}.{method.name}")


def _same(target: ast.AST, name: _Name) -> bool:
    return ast.dump(target).replace("Store()", "Load()") == ast.dump(name)


def _base_of(definition: ast.ClassDef) -> ast.ClassDef | None:
    """Return a class's base class, if the same file has it."""
    names = {base.id for base in definition.bases if isinstance(base, ast.Name)}
    module = enclosing(definition, ast.Module)
    classes = (node for node in getattr(module, "body", ()) if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name in names and node is not definition), None)


def _location(node: Any, file: str, function: str) -> SourceLocation:
    text = ast.get_source_segment(Source.for_filename(file).text, node) or ""
    return SourceLocation(file, node.lineno, node.col_offset + 1, function, text)


def use(subject: Subject, ref: OutputRef, made: SourceLocation) -> SourceLocation | None:
    """Return where a result is used: the first call on another line that computes with it, not only moves it."""
    downstream = subject.graph.downstream_of(ref)
    for event in subject.base.events[ref.order :]:
        if not any(one in downstream for one in event.refs) or event.name in ops.DATA_MOVEMENT:
            continue
        place = subject.place(event.refs[0])
        if place is not None and (place.file, place.line) != (made.file, made.line):
            return place
    return None
