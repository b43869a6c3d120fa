"""Finds tensors that the code has put into a list, such as the hidden states of all layers, and then modifies in place.

Whoever reads the list gets the numbers of a later layer.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnshape.checks.attention.dead_ends import live_results
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.variables import CONTAINERS, Loop, rebindings, returned
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.checks.rules.state.modifications import Modification, is_modified, modifications
from attnshape.tracing.operations import JOINS
from attnshape.tracing.source_locations import FramePosition, SourceLocator
from attnshape.tracing.storage import memory_of
from attnshape.tracing.syntax_nodes import enclosing

_COLLECTING = {"append", "appendleft", "insert"}
"""Methods that put one more element into a list."""
_KEEPING = _COLLECTING | {"setdefault"}
"""Methods that put an argument into a container."""


def check_kept(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for the first call that modifies what the code has kept to read it later."""
    for event in subject.base.events:
        if event.in_place and is_modified(subject, event):
            violation = _of_several_results(subject, event) or _of_a_list(subject, event)
            if violation is not None:
                yield violation
                return


def _of_several_results(subject: Subject, event: ReplayedCall) -> Violation | None:
    """Return a violation if several results, or several tensors that one call joins, are the one that a call modifies.

    The code has kept it before, or returns it under an old name beside the new one.
    """
    own = _region(event.outputs[0])
    count, what = Counter(map(_region, subject.base.results))[own], "results"
    for later in subject.base.events[event.order :] if count < 2 else ():
        if later.name in JOINS and count < 2:
            count, what = Counter(map(_region, later.operands))[own], f"tensors that {later.short_name} joins"
    if count < 2:
        return None
    changes = list(modifications(event))
    name = next((one.name for one in changes if any(_is_kept_by(one, node) for node in ast.walk(one.function))), None)
    if name is None and what == "results":
        name = next((name for one in changes if (name := _returned_name(one)) is not None), None)
    if name is None:
        return None
    message = f"{event.short_name} modifies {name} in place, which is kept as a result: {count} {what} are one"
    hint = "compute a new tensor for each result: x = x + y instead of x += y"
    evidence = "compared the memory of the results, and the tensor before and after the call"
    return Violation("AS909", message, event.refs[0], hint, evidence)


def _of_a_list(subject: Subject, event: ReplayedCall) -> Violation | None:
    """Return a violation if a list has what a call modifies, and both are read: the variable and the list.

    A list of buffers that the code fills in place is read by itself.
    """
    if not subject.graph.carries_data(event.sources[0]):
        return None
    for one in modifications(event):
        nodes = [] if one.aliases else list(_collected(one))
        if not nodes and _had_data(subject, event):
            nodes = list(_collected_aliases(one))
        if not nodes:
            continue
        readers = [reader for reader in _live_readers(subject, event) if not reader.in_place]
        by_name = [reader for reader in readers if _may_read(one, event, reader)]
        others = [reader for reader in readers if reader not in by_name and not _gets_it_returned(one, event, reader)]
        if by_name and others:
            return _violation(subject, event, one.name, nodes[0], others[0])
    return None


def _collected(change: Modification) -> Iterator[Any]:
    """Yield the expressions that put a variable's tensor into a list before another one modifies it."""
    return (node for node in ast.walk(change.function) if _collects(node) and _is_kept_by(change, node))


def _collected_aliases(change: Modification) -> Iterator[Any]:
    """Yield the expressions that put a variable into a list, beside the assignment that gives its tensor another name.

    A loop may bind the first variable again, and modify the tensor of an earlier iteration under the other name.
    """
    for assignment in change.assignments:
        name, loop = assignment.value.id, enclosing(assignment, Loop)
        bound = [store.lineno for store in rebindings(change.function, name)]
        nodes: Iterator[Any] = ast.walk(change.function)
        for node in nodes if name != change.name else ():
            if _collects(node) and _keeps(node, name) and enclosing(node, Loop) is loop:
                first, last = sorted((assignment.lineno, node.lineno))
                if not any(first < line <= last for line in bound):
                    yield node


def _had_data(subject: Subject, event: ReplayedCall) -> bool:
    """Return whether the tensor that a call modifies had data from the start, rather than being filled in place."""
    own = _region(event.outputs[0])
    first = next(one for one in subject.base.events if any(_region(output) == own for output in one.outputs))
    return subject.graph.carries_data(tuple(first.refs))


def _violation(subject: Subject, event: ReplayedCall, name: str, node: Any, reader: ReplayedCall) -> Violation:
    source = subject.source(reader.refs[0])
    where = f" in line {source.line}" if source is not None else ""
    message = (
        f"{event.short_name} modifies {name} in place after line {node.lineno} has put it into a list, which is "
        f"read{where}: its numbers are no longer there"
    )
    hint = "compute a new tensor for the next layer: x = x + y instead of x += y"
    evidence = "compared the tensor before and after the call, and followed it to where it is read again"
    return Violation("AS909", message, event.refs[0], hint, evidence)


def _region(tensor: Tensor) -> tuple[object, ...]:
    """Return what is equal for two tensors only if each has all numbers of the other one."""
    memory = memory_of(tensor)
    place = tensor.storage_offset() if memory is not None and tensor.layout == torch.strided else id(tensor)
    return memory, place, tuple(tensor.shape)


def _is_kept_by(change: Modification, node: Any) -> bool:
    """Return whether an expression puts a variable's tensor into a container before another one modifies it."""
    if not _keeps(node, change.name):
        return False
    bound = [store.lineno for store in rebindings(change.function, change.name)]
    if node.lineno < change.node.lineno:
        return not any(node.lineno < line < change.node.lineno for line in bound)
    loop = enclosing(change.node, Loop)
    if loop is None or loop is not enclosing(node, Loop):
        return False
    between = (loop.lineno <= line < change.node.lineno or node.lineno < line <= loop.end_lineno for line in bound)
    return not any(between)


def _keeps(node: ast.AST, name: str) -> bool:
    """Return whether an expression puts a variable's tensor into a container that is a variable's, or grows one."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=elements) if method in _KEEPING:
            pass
        case ast.Assign(targets=[ast.Subscript()], value=value):
            elements = [value]
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Dict(values=elements):
            whole: Any = node
            while isinstance(whole.parent, (*CONTAINERS, ast.BinOp)):
                whole = whole.parent
            assigned = isinstance(whole.parent, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            if not assigned or whole.parent.value is not whole or _unpacks(whole.parent):
                return False
        case _:
            return False
    return any(isinstance(one, ast.Name) and one.id == name for one in elements)


def _collects(node: Any) -> bool:
    """Return whether an expression makes a list of one element, or gives a list or a tuple one more."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in _COLLECTING
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return len(elements) == 1
    return False


def _unpacks(assignment: Any) -> bool:
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    return any(isinstance(one, (ast.Tuple, ast.List)) for one in targets)


def _live_readers(subject: Subject, event: ReplayedCall) -> Iterator[ReplayedCall]:
    """Yield the later calls that read the tensor that a call modifies, and on which the results depend."""
    live, own = live_results(subject), _region(event.outputs[0])
    for reader in subject.base.events[event.order :]:
        if live.intersection(reader.refs) and any(_region(operand) == own for operand in reader.operands):
            yield reader


def _may_read(change: Modification, event: ReplayedCall, reader: ReplayedCall) -> bool:
    """Return whether a call may read a tensor by the variable that was modified, rather than from a list."""
    frame = _frame(change, event, reader)
    if frame is None:
        return False
    _, node = SourceLocator().find(frame)
    if node is None:
        return True
    mentioned = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return any(not _is_rebound(change, name, node) for name in mentioned & ({change.name} | change.bound))


def _is_rebound(change: Modification, name: str, reader: Any) -> bool:
    """Return whether a statement that runs before a reader, whichever way the code takes, binds a variable again."""
    around, node = set[Any](), reader
    while node is not None:
        around.add(node)
        node = getattr(node, "parent", None)
    end = enclosing(change.node, ast.stmt).end_lineno
    statements = [enclosing(store, ast.stmt) for store in rebindings(change.function, name)]
    return any(
        end < one.lineno < reader.lineno and one.parent in around and not isinstance(one.parent, (ast.If, ast.Try))
        for one in statements
    )


def _gets_it_returned(change: Modification, event: ReplayedCall, reader: ReplayedCall) -> bool:
    """Return whether a call may read a tensor that the function with the variable has returned by itself."""
    if _frame(change, event, reader) is not None:
        return False
    end = enclosing(change.node, ast.stmt).end_lineno
    for name in {change.name} | change.bound:
        bound = [store.lineno for store in rebindings(change.function, name)]
        for node in returned(change.function, name):
            if not any(end < line < node.lineno for line in bound):
                return True
    return False


def _frame(change: Modification, event: ReplayedCall, reader: ReplayedCall) -> FramePosition | None:
    """Return where a call is in the function that modifies a variable; None if that function has returned."""
    depth = len(event.calls) - change.level
    frame = reader.calls[-depth] if len(reader.calls) >= depth else None
    return frame if frame is not None and frame.f_code is event.calls[change.level].f_code else None


def _returned_name(change: Modification) -> str | None:
    """Return the old name under which a statement below an expression returns what the expression modifies."""
    names = change.aliases if change.is_statement else ({change.name} | change.aliases) - change.bound
    for name in sorted(names):
        bound = [store.lineno for store in rebindings(change.function, name)]
        for node in returned(change.function, name):
            line = change.node.lineno
            if node.lineno > line and not any(line <= store < node.lineno for store in bound):
                return name
    return None
