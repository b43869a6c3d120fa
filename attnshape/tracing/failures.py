"""What is known of a failure: the arguments of the failing call without tensors, or values that its line reads."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor

from attnshape.tracing.frames import Frames
from attnshape.tracing.raw import OpaqueArgument, RawCall, RawFailure, RawOperand, SourceLocation, TensorSlot
from attnshape.tracing.source_locations import has_own_source
from attnshape.tracing.storage import TensorRegistry, describe_tensor
from attnshape.tracing.syntax_nodes import SourceFile

_PLAIN_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
)
_SELF_EXPLANATORY = (TypeError, AttributeError, KeyError, NameError)
"""Exceptions for which the failing line is explanation enough."""
_MAX_NUMEL = 2**20
"""The minimum and maximum of larger operands aren't computed."""


def without_tensors(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> RawCall:
    """Return a call whose tensors are replaced by their positions among the operands."""
    slots = (TensorSlot(position) for position in range(2**31))
    positional = tuple(_replace_tensors(value, slots) for value in args)
    return RawCall(function, positional, {name: _replace_tensors(value, slots) for name, value in keywords.items()})


def _replace_tensors(value: Any, slots: Iterator[TensorSlot]) -> Any:
    # slots are assigned in the order of the operands
    if isinstance(value, Tensor):
        return next(slots)
    if isinstance(value, (tuple, list)):
        items = [_replace_tensors(item, slots) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {key: _replace_tensors(item, slots) for key, item in value.items()}
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(part if isinstance(part, _PLAIN_TYPES) else OpaqueArgument() for part in parts))
    return value if isinstance(value, _PLAIN_TYPES) else OpaqueArgument()


def only_wraps(composites: Sequence[str], operation: str) -> bool:
    """Return whether composites are only wrappers of an operation, judged by their names.

    >>> only_wraps(["torch.nn.Linear"], "torch.nn.functional.linear")
    True
    >>> only_wraps(["torch.nn.MultiheadAttention"], "torch.nn.functional.linear")
    False
    """
    return {_plain(name) for name in composites} == {_plain(operation)}


def _plain(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "").lower()


def min_and_max(tensor: Tensor) -> tuple[float, float] | None:
    """Return the smallest and largest number of a tensor; None unless it is small and on the CPU."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not 0 < tensor.numel() <= _MAX_NUMEL:
        return None
    try:
        with torch.no_grad():
            smallest, largest = torch.aminmax(tensor.detach())
        return smallest.item(), largest.item()
    except (RuntimeError, NotImplementedError):  # not every dtype can be compared
        return None


def parameter_names(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[int, str]:
    """Map the id of each tensor argument to its parameter's name, as far as the signature is known."""
    try:
        bound = inspect.signature(function).bind(*args, **keywords).arguments
    except (TypeError, ValueError):  # a builtin, or the arguments don't match
        bound = dict(keywords)
    # if a tensor is passed more than once, the first name wins
    return {id(value): name for name, value in reversed(bound.items()) if isinstance(value, Tensor)}


def describe_failure(error: BaseException, known: RawFailure | None, registry: TensorRegistry) -> RawFailure:
    """Describe the exception that ended a run, with the call that raised it if there is one."""
    failure = known if known is not None and known.error is error else RawFailure(error)
    innermost = _innermost(error.__traceback__)
    if innermost is None:
        return failure
    frame, line, code = innermost.tb_frame, innermost.tb_lineno, innermost.tb_frame.f_code
    text = linecache.getline(code.co_filename, line).strip() if has_own_source(code) else ""
    location = SourceLocation(code.co_filename, line, 1, code.co_qualname.replace(".<locals>", ""), text)
    failure.location = failure.location or location
    if failure is known or isinstance(error, _SELF_EXPLANATORY):
        return failure
    for expression in _explaining_expressions(innermost):
        value = _value(expression, frame)
        name = ast.unparse(expression)
        if isinstance(value, Tensor):
            tensor = describe_tensor(value, "new", registry.reference(value), None)
            failure.operands.append(RawOperand(name, tensor))
        elif type(value) is int:
            failure.values[name] = value
    return failure


def release_frames(error: BaseException) -> None:
    """Release the frames of an exception and of its causes, which keep tensors alive."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = None
        current = current.__cause__ or current.__context__


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    frames, innermost = Frames(), None
    while trace is not None:
        innermost = trace if frames.kind(trace.tb_frame.f_code) == "own" else innermost
        trace = trace.tb_next
    return innermost


def _explaining_expressions(trace: TracebackType) -> list[ast.expr]:
    """Return the expressions whose values explain why an assertion or an unpacking failed."""
    if not has_own_source(trace.tb_frame.f_code):
        return []
    try:
        executing = SourceFile.executing(trace)
        statements = executing.statements or set()
    except Exception:  # noqa: BLE001 - unreadable source explains nothing
        return []
    if trace.tb_next is not None:  # raised inside a library: the arguments explain it
        arguments = executing.node.args if isinstance(executing.node, ast.Call) else []
        return [node for node in arguments if isinstance(node, (ast.Name, ast.Attribute))]
    match list(statements):
        case [ast.Assert(test=test)]:
            kinds = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
            return [node for node in ast.walk(test) if isinstance(node, kinds)]
        case [ast.Assign(targets=[ast.Tuple() | ast.List()], value=unpacked)]:
            match unpacked:
                case ast.Attribute(value=owner, attr="shape"):
                    return [owner]
                case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=[]):
                    return [owner]
                case ast.Name():
                    return [unpacked]
                case ast.Call(func=ast.Attribute(value=owner), args=arguments):
                    return [node for node in (owner, *arguments) if isinstance(node, (ast.Name, ast.Attribute))]
    return []


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return an expression's value if evaluating it runs none of the traced code; None otherwise."""
    match node:
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=inner, attr=name):
            owner = _value(inner, frame)
            if isinstance(owner, Tensor):
                return tuple(owner.shape) if name == "shape" else None
            return getattr(owner, "__dict__", {}).get(name)
        case ast.Subscript(
            value=inner,
            slice=ast.Constant(value=int(number)) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))),
        ):
            owner = _value(inner, frame)
            index = -number if isinstance(node.slice, ast.UnaryOp) else number
            if isinstance(owner, tuple) and -len(owner) <= index < len(owner):
                return owner[index]
        case ast.Call(func=ast.Attribute(value=inner, attr="size"), args=[axis], keywords=[]):
            shape = ast.Attribute(value=inner, attr="shape", ctx=ast.Load())
            return _value(ast.Subscript(value=shape, slice=axis, ctx=ast.Load()), frame)
    return None
