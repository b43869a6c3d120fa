"""Finds results that are modified in place under one name and read again, changed, under another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attnshape.checks.attention.dead_ends import live_results
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.variables import Function, stores
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.checks.rules.state.kept import check_kept
from attnshape.checks.rules.state.modifications import is_modified, modifications
from attnshape.tracing.source_locations import SourceLocator
from attnshape.tracing.syntax_nodes import enclosing

_DESCRIPTIONS = {"shape", "size", "dim", "ndim", "numel", "dtype", "device", "type", "stride", "requires_grad"}
"""Attributes that have no numbers of a tensor."""


@dataclass(frozen=True)
class _Write:
    """An expression that modifies a tensor that other variables hold than those that the code goes on with."""

    level: int
    """Which of the frames of the call the expression is in, 0 being the innermost."""
    names: frozenset[str]
    """The other variables."""
    node: Any
    """The expression."""


def check_reused(subject: Subject) -> Iterator[Violation]:
    """Yield a violation for each line that modifies a tensor which is read further below under another name."""
    seen: set[object] = set()
    for kept in check_kept(subject):
        seen.add(subject.source(kept.at))
        yield kept
    live = live_results(subject)
    for event in subject.base.events:
        place = subject.source(event.refs[0])
        if place in seen or not is_modified(subject, event):
            continue
        for write in _writes(event):
            for reader in subject.base.events[event.order :]:
                name = _name_read(event, write, reader) if live.intersection(reader.refs) else None
                if name is not None:
                    seen.add(place)
                    yield _violation(subject, event, reader, name)
                    break


def _violation(subject: Subject, event: ReplayedCall, reader: ReplayedCall, name: str) -> Violation:
    source = subject.source(reader.refs[0])
    where = f" in line {source.line}" if source is not None else ""
    message = (
        f"{event.short_name} modifies {name} in place, and {name} is read again{where}: its numbers are no longer there"
    )
    hint = "compute a new tensor: without inplace=True, x * y instead of x.mul_(y), x = x + y instead of x += y"
    evidence = "compared the tensor before and after the call, and followed it to where it is read again"
    return Violation("AS909", message, event.refs[0], hint, evidence)


def _writes(event: ReplayedCall) -> Iterator[_Write]:
    """Yield the expression that modifies a tensor, and those by which callers pass it, with the names that remain.

    A statement that does nothing else is meant to modify its variable, but not what other variables hold.
    """
    for one in modifications(event):
        names = one.aliases if one.is_statement else ({one.name} | one.aliases) - one.bound
        if names:
            yield _Write(one.level, frozenset(names), one.node)
        if one.is_statement and not one.is_returned:
            return


def _name_read(event: ReplayedCall, write: _Write, reader: ReplayedCall) -> str | None:
    """Return the old name under which a later call in the same function reads the tensor that was modified."""
    tensor, frame = event.operands[0], event.calls[write.level]
    depth = len(event.calls) - write.level
    if len(reader.calls) < depth or not any(operand is tensor for operand in reader.operands):
        return None
    own = reader.calls[-depth]
    if (
        own.f_code is not frame.f_code
        or reader.calls[len(reader.calls) - depth + 1 :] != event.calls[write.level + 1 :]
    ):
        return None
    _, node = SourceLocator().find(own)
    if node is None:
        return None
    end = (write.node.end_lineno, write.node.end_col_offset)
    found = [
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name)
        and part.id in write.names
        and (part.lineno, part.col_offset) >= end
        and not _is_described(part)
    ]
    return next((name for name in found if not _is_bound_between(name, write.node, node)), None)


def _is_described(name: Any) -> bool:
    parent = name.parent
    return isinstance(parent, ast.Attribute) and (parent.attr in _DESCRIPTIONS or parent.attr.startswith("new_"))


def _is_bound_between(name: str, write: Any, reader: Any) -> bool:
    function = enclosing(write, Function)
    return any(write.lineno <= store.lineno < reader.lineno for store in stores(function, name))
