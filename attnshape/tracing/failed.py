"""The facts of a failure: what the call was given, without its tensors, and what stood in the line that raised."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from executing import Source as ExecutingSource
from torch import Tensor

from attnshape.tracing.frames import Frames
from attnshape.tracing.raw import Opaque, Place, RawCall, RawFailure, RawOperand, Slot
from attnshape.tracing.storage import Ledger, facts

_KEPT = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout)
_OF_THE_LANGUAGE = (TypeError, AttributeError, KeyError, NameError)
"""Of these the line says it all."""
_MOST_NUMBERS = 2**20
"""Of a larger operand the extremes aren't looked for."""


def taken_apart(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> RawCall:
    """Return a call with its tensors replaced by their places among the operands; no tensor is kept."""
    slots = (Slot(position) for position in range(2**31))
    positional = tuple(_emptied(value, slots) for value in args)
    return RawCall(function, positional, {name: _emptied(value, slots) for name, value in keywords.items()})


def _emptied(value: Any, slots: Iterator[Slot]) -> Any:
    # in the order in which the recorder lists the operands
    if isinstance(value, Tensor):
        return next(slots)
    if isinstance(value, (tuple, list)):
        items = [_emptied(item, slots) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {key: _emptied(item, slots) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(part if isinstance(part, _KEPT) else Opaque() for part in (value.start, value.stop, value.step)))
    return value if isinstance(value, _KEPT) else Opaque()


def does_no_more(composites: Sequence[str], operation: str) -> bool:
    """Say whether composites only pass on what the operation returns, by their names.

    >>> does_no_more(["torch.nn.Linear"], "torch.nn.functional.linear")
    True
    >>> does_no_more(["torch.nn.MultiheadAttention"], "torch.nn.functional.linear")
    False
    """
    return {_plain(name) for name in composites} == {_plain(operation)}


def _plain(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "").lower()


def extremes(tensor: Tensor) -> tuple[float, float] | None:
    """Return the smallest and the largest number in a tensor; None where it isn't a small one on the CPU."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not 0 < tensor.numel() <= _MOST_NUMBERS:
        return None
    try:
        with torch.no_grad():
            smallest, largest = torch.aminmax(tensor.detach())
        return smallest.item(), largest.item()
    except (RuntimeError, NotImplementedError):  # not every dtype can be compared
        return None


def parameter_names(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[int, str]:
    """Return the parameter that each tensor was passed as, by the tensor's id, where the function tells."""
    try:
        bound = inspect.signature(function).bind(*args, **keywords).arguments
    except (TypeError, ValueError):  # built in, or given wrong arguments
        bound = dict(keywords)
    # the same tensor may be passed more than once: the first name is the one that it is known by
    return {id(value): name for name, value in reversed(bound.items()) if isinstance(value, Tensor)}


def failure_from(error: BaseException, known: RawFailure | None, ledger: Ledger) -> RawFailure:
    """Return the facts of the exception that ended a run: those of the call that raised it, where one did."""
    failure = _raised_in_code(error, ledger)
    if known is None or known.error is not error:
        return failure
    known.place = known.place or failure.place
    return known


def _raised_in_code(error: BaseException, ledger: Ledger) -> RawFailure:
    """Return the facts of an exception that no traced operation raised: its line, and what that line reads."""
    found = _innermost(error.__traceback__)
    failure = RawFailure(error)
    if found is not None:
        frame, line = found.tb_frame, found.tb_lineno
        code = frame.f_code
        text = linecache.getline(code.co_filename, line).strip()
        failure.place = Place(code.co_filename, line, 1, code.co_qualname.replace(".<locals>", ""), text)
        for expression in _read(found) if not isinstance(error, _OF_THE_LANGUAGE) else ():
            value = _value(expression, frame)
            name = ast.unparse(expression)
            if isinstance(value, Tensor):
                failure.operands.append(RawOperand(name, facts(value, "new", ledger.reference(value), None)))
            elif type(value) is int:
                failure.values[name] = value
    return failure


def release(error: BaseException) -> None:
    """Let go of the frames that an exception and those before it came through: they keep tensors alive."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = None
        current = current.__cause__ or current.__context__


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    """Return the last place outside the libraries that an exception came through."""
    frames = Frames()
    found = None
    while trace is not None:
        if not frames.is_library(trace.tb_frame.f_code):
            found = trace
        trace = trace.tb_next
    return found


def _read(trace: TracebackType) -> list[ast.expr]:
    """Return the expressions whose values tell why an assertion or an unpacking failed."""
    try:
        executing = ExecutingSource.executing(trace)
        statements = executing.statements or set()
    except Exception:  # noqa: BLE001 - source that can't be read tells nothing
        return []
    if trace.tb_next is not None:  # a library raised it: what it was given
        arguments = executing.node.args if isinstance(executing.node, ast.Call) else []
        return [one for one in arguments if isinstance(one, (ast.Name, ast.Attribute))]
    match list(statements):
        case [ast.Assert(test=test)]:
            kinds = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
            return [node for node in ast.walk(test) if isinstance(node, kinds)]
        case [ast.Assign(targets=[ast.Tuple() | ast.List()], value=ast.Attribute(value=owner, attr="shape"))]:
            return [owner]
        case [
            ast.Assign(
                targets=[ast.Tuple() | ast.List()],
                value=ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[]),
            )
        ]:
            return [owner]
        case [ast.Assign(targets=[ast.Tuple() | ast.List()], value=ast.Name() as value)]:
            return [value]
        case [
            ast.Assign(
                targets=[ast.Tuple() | ast.List()], value=ast.Call(func=ast.Attribute(value=owner), args=arguments)
            )
        ]:
            return [one for one in (owner, *arguments) if isinstance(one, (ast.Name, ast.Attribute))]
    return []


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return what an expression stands for where reading it runs no code of the traced one; None elsewhere."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=inner, attr=name):
            owner = _value(inner, frame)
            if isinstance(owner, Tensor):
                return tuple(owner.shape) if name == "shape" else None
            return getattr(owner, "__dict__", {}).get(name)
        case (
            ast.Subscript(value=inner, slice=ast.Constant(value=int(place)))
            | ast.Subscript(value=inner, slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(place))))
        ):
            owner = _value(inner, frame)
            position = -place if isinstance(node.slice, ast.UnaryOp) else place
            if isinstance(owner, tuple) and -len(owner) <= position < len(owner):
                return owner[position]
        case ast.Call(func=ast.Attribute(value=inner, attr="size"), args=[axis], keywords=[]):
            shape = ast.Attribute(value=inner, attr="shape", ctx=ast.Load())
            return _value(ast.Subscript(value=shape, slice=axis, ctx=ast.Load()), frame)
    return None
