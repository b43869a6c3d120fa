"""Numbers that a module's constructor computes, one of which nothing reads, though its siblings are read.

An unread number alone says little: many modules inherit or copy a constructor and take their scale from elsewhere.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from executing import Source
from torch import Tensor, nn

from attnshape.checks.attention.definitions import attribute_definition
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.runner import Runnable


def check_attributes(subject: Subject) -> Iterator[Violation]:
    """Look for numbers that a constructor computes beside others of the same kind, and that nothing reads."""
    for one in subject.experiment.observe(_unread):
        message = f"self.{one.name} is computed and nothing reads it, while self.{one.sibling} is read"
        hint = f"use self.{one.name} where self.{one.sibling} has its like, or remove it"
        evidence = "searched the syntax trees of the target's modules for the name"
        yield Violation("AS813", message, None, hint, evidence, "measured", one.place)


@dataclass(frozen=True)
class _Unread:
    """A computed number that nothing reads."""

    name: str
    sibling: str
    """An attribute of the same kind that is read."""
    place: SourceLocation
    """Where it is computed."""


def _unread(runnable: Runnable, _: Mapping[str, Tensor]) -> list[_Unread]:
    """Return the unread numbers of the target's modules, each once for a class."""
    root = runnable.function
    modules = {type(module): module for module in root.modules()} if isinstance(root, nn.Module) else {}
    own = {cls: module for cls, module in modules.items() if not cls.__module__.startswith("torch.")}
    numbers = {cls: list(_numbers(module)) for cls, module in own.items()}
    if not any(len(names) > 1 for names in numbers.values()):
        return []
    files = {file for cls in own for base in cls.__mro__ if (file := _source_file(base))}
    trees = [tree for file in files if (tree := Source.for_filename(file).tree) is not None]
    if any(_reads_by_name(node) for tree in trees for node in ast.walk(tree)):
        return []
    read = {name for tree in trees for node in ast.walk(tree) for name in _names_read(node)}
    found = []
    for cls, names in numbers.items():
        computed = {name: place for name in names if (place := _computed(cls, name)) is not None}
        for name in computed.keys() - read:
            sibling = next((other for other in computed if other in read and _are_siblings(name, other)), None)
            if sibling is not None:
                found.append(_Unread(name, sibling, computed[name]))
    return found


def _numbers(module: nn.Module) -> Iterator[str]:
    return (name for name, value in vars(module).items() if isinstance(value, float) and not name.startswith("_"))


def _source_file(cls: type) -> str | None:
    """Return the source file of a class other than torch's own; None if it has none."""
    if cls.__module__.partition(".")[0] in ("torch", "builtins"):
        return None
    try:
        return inspect.getsourcefile(cls)
    except TypeError:
        return None


def _names_read(node: ast.AST) -> Iterator[str]:
    """Yield the attribute that a node reads, and a text, by which `getattr` may read one."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load() | ast.Del()):
            yield name
        case ast.Constant(value=str(text)):
            yield text


def _reads_by_name(node: ast.AST) -> bool:
    """Return whether a node may read attributes by names that only a run knows."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]):
            return False
        case ast.Call(func=ast.Name(id="getattr" | "vars")) | ast.Attribute(attr="__dict__" | "__getattr__"):
            return True
    return False


def _computed(cls: type, name: str) -> SourceLocation | None:
    """Return where a constructor computes a number; None if it doesn't, or only keeps an argument."""
    place = attribute_definition(cls, name)
    if place is None or not place.function.endswith("__init__"):
        return None
    try:
        expression = ast.parse(place.expression.strip(), mode="eval").body
    except SyntaxError:
        return None
    return place if isinstance(expression, (ast.BinOp, ast.Call)) else None


def _are_siblings(name: str, other: str) -> bool:
    """Return whether two names differ in what is in front of the same last word."""
    words, others = name.split("_"), other.split("_")
    return len(words) > 1 and len(others) > 1 and words[-1] == others[-1]
