"""Finds the expression that a frame is evaluating, and the names of its operands and results."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import dis
import functools
import itertools
import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, ClassVar

from executing import Source
from torch import Tensor

from attnshape.tracing.calls import TracedCall, takes_receiver
from attnshape.tracing.raw import SourceLocation
from attnshape.tracing.syntax_nodes import SourceFile


def assignment_targets(node: Any) -> tuple[tuple[str | None, ...], bool, ast.expr | None]:
    """Return the names to which a node's value is assigned, whether it is unpacked, and the annotation."""
    parent = getattr(node, "parent", None)
    if isinstance(node, ast.AugAssign):
        return (_name(node.target),), False, None
    match node if isinstance(node, ast.Assign) else parent:  # a tensor is unpacked: `q, k, v = qkv`
        case ast.IfExp(body=body, orelse=orelse) if node is body or node is orelse:
            return assignment_targets(parent)
        case ast.NamedExpr(target=target):
            return (_name(target),), False, None
        case ast.AnnAssign(target=target, annotation=annotation):
            return (_name(target),), False, annotation
        case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names), *_]):
            starred = any(isinstance(name, ast.Starred) for name in names)
            return ((), False, None) if starred else (tuple(map(_name, names)), True, None)
        case ast.Assign(targets=[target, *_]):
            return (_name(target),), False, None
        case ast.Tuple(elts=values):
            outer, unpacked, _ = assignment_targets(parent)
            if unpacked and len(outer) == len(values):
                return (outer[next(place for place, value in enumerate(values) if value is node)],), False, None
    return (), False, None


def targets_per_iteration(node: Any) -> tuple[str | None, ...]:
    """Return the names that `q, k, v = (f(t) for t in …)` gives to the element `f(t)`, one for each iteration."""
    comprehension = getattr(node, "parent", None)
    if not isinstance(comprehension, (ast.GeneratorExp, ast.ListComp)) or comprehension.elt is not node:
        return ()
    names, unpacked, _ = assignment_targets(comprehension)
    plain = len(comprehension.generators) == 1 and not comprehension.generators[0].ifs
    return names if plain and unpacked else ()


_loop_variables: dict[ast.AST, frozenset[str]] = {}
"""What `loop_variables` returned for a node and for those around it, which may be thousands deep."""


def loop_variables(node: Any) -> frozenset[str]:
    """Return the variables of the loops and comprehensions around a node."""
    inner = []
    while node not in _loop_variables:
        inner.append(node)
        node = getattr(node, "parent", None)
        if node is None or isinstance(node, ast.FunctionDef):
            variables: frozenset[str] = frozenset()
            break
    else:
        variables = _loop_variables[node] | _variables_bound_by(node)
    for node in reversed(inner):
        _loop_variables[node] = variables
        variables |= _variables_bound_by(node)
    return _loop_variables[inner[0]] if inner else _loop_variables[node]


def _variables_bound_by(node: Any) -> frozenset[str]:
    targets = [part.target for part in getattr(node, "generators", ())]
    targets += [node.target] if isinstance(node, ast.For) else []
    return frozenset(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def dims_string(annotation: ast.expr) -> str | None:
    """Return the dims string of `Float[Tensor, "B L D"]`, alone or in a union; None for any other annotation."""
    match annotation:
        case ast.Subscript(slice=ast.Tuple(elts=[_, ast.Constant(value=str(dims))])):
            return " ".join(dims.split())
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return dims_string(left) or dims_string(right)
    return None


def kind_name(annotation: ast.expr) -> str | None:
    """Return `Float` of the annotation that `dims_string` reads; None if it isn't a plain name."""
    match annotation:
        case ast.Subscript(
            value=ast.Name(id=name) | ast.Attribute(attr=name), slice=ast.Tuple(elts=[_, ast.Constant()])
        ):
            return name
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return kind_name(left) or kind_name(right)
    return None


def calls_itself(node: ast.AST, operation: str) -> bool:
    """Return whether a node is an operation's own call, not that of something which uses it, as `sum(rows)` does."""
    if not isinstance(node, ast.Call):
        return True
    written = getattr(node.func, "id", getattr(node.func, "attr", None))
    return written == operation.rpartition(".")[2]


def plain_variables(
    node: ast.AST, method: bool, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> list[tuple[str, Tensor]]:
    """Return the plain variables among a call's operands, each with its tensor.

    `method` says that the first run-time argument is the receiver of a method call.
    """
    if isinstance(node, ast.BinOp):
        written = _named(enumerate(_operands(node.left, node.right, arguments)))
    else:
        written = _written(node, method)
    values: dict[Any, Any] = {**dict(enumerate(arguments)), **keywords}
    pairs: list[tuple[str | None, Any]] = []
    for place, names in written:
        value = values.get(place)
        if isinstance(names, str):
            pairs.append((names, value))
        elif isinstance(value, (tuple, list)):
            pairs += zip(names, value, strict=False)
    return [(name, value) for name, value in pairs if name is not None and isinstance(value, Tensor)]


_Place = int | str
"""An argument's position or keyword."""
_Written = tuple[tuple[_Place, str | tuple[str | None, ...]], ...]
"""The plain variables among a call's arguments, or the tuple of them that an argument is."""


@functools.cache
def _written(node: ast.AST, method: bool) -> _Written:
    values: Sequence[ast.expr] = ()
    words: Sequence[ast.keyword] = ()
    match node:
        case ast.Call(func=function, args=given, keywords=words):
            receiver = [function.value] if method and isinstance(function, ast.Attribute) else []
            values = [*receiver, *itertools.takewhile(lambda value: not isinstance(value, ast.Starred), given)]
        case ast.AugAssign(target=target, value=value):
            values = [target, value]
        case ast.Subscript(value=value, slice=key, ctx=ast.Store()):
            statement = getattr(node, "parent", None)
            values = [value, key, *([statement.value] if isinstance(statement, ast.Assign) else [])]
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.UnaryOp(operand=value):
            values = [value]
    return _named([*enumerate(values), *((word.arg, word.value) for word in words if word.arg)])


def _named(written: Iterable[tuple[_Place, ast.expr]]) -> _Written:
    named: list[tuple[_Place, str | tuple[str | None, ...]]] = []
    for place, expression in written:
        if isinstance(expression, ast.Name):
            named.append((place, expression.id))
        elif isinstance(expression, (ast.Tuple, ast.List)):
            named.append((place, tuple(item.id if isinstance(item, ast.Name) else None for item in expression.elts)))
    return tuple(named)


def _operands(left: ast.expr, right: ast.expr, arguments: tuple[Any, ...]) -> list[ast.expr]:
    """Return a binary operation's operands in the order of its run-time arguments: `2 * x` calls `mul(x, 2)`."""
    if len(arguments) == 2 and not isinstance(arguments[1], Tensor):
        if isinstance(right, ast.Constant):
            return [left]
        return [right] if isinstance(left, ast.Constant) else []
    return [left, right]


def displayed_node(node: Any) -> Any:
    """Return the node whose text is displayed: the whole statement for an element that is assigned to."""
    parent = getattr(node, "parent", None)
    if isinstance(node, ast.Assign):
        return node.value
    written = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return parent if written and isinstance(parent, (ast.Assign, ast.AugAssign)) else node


def _name(target: ast.expr) -> str | None:
    """Return the name of a variable or an attribute, `q` or `self.cache`; None for anything else."""
    match target:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            owner = _name(value)
            return f"{owner}.{attribute}" if owner else None
    return None


def element_update(node: Any) -> tuple[int, int] | None:
    """Return the first and last line of the `x[a] += y` to which a node belongs, if it does."""
    update = node if isinstance(node, ast.AugAssign) else getattr(node, "parent", None)
    match update:
        case ast.AugAssign(target=ast.Subscript() as target) if node in (update, target):
            return update.lineno, update.end_lineno or update.lineno
    return None


_TO_CALL = 4
"""The size in bytes of a PRECALL instruction with its cache."""


@dataclass(frozen=True, slots=True)
class FramePosition:
    """The position of a frame, to be looked up later."""

    f_code: CodeType
    f_lasti: int
    f_lineno: int
    f_globals: dict[str, Any]

    @classmethod
    def of(cls, frame: FrameType) -> FramePosition:
        """Return a frame's current position."""
        return cls(frame.f_code, frame.f_lasti, frame.f_lineno, frame.f_globals)

    @property
    def at_call(self) -> FramePosition:
        """The same position, at the instruction that belongs to the call in the source.

        In hot code, Python 3.11 makes the call of a built-in type, such as `list(x)`, one instruction early.
        """
        if dis.opname[self.f_code.co_code[self.f_lasti]] != "PRECALL":
            return self
        return dataclasses.replace(self, f_lasti=self.f_lasti + _TO_CALL)


def has_own_source(code: CodeType) -> bool:
    """Return whether the text that linecache has under a code's file name is the code's own, if it has any.

    From Python 3.13 on, linecache has the text of `python -c` as `<string>`, the usual name of code that `exec` runs.
    """
    return code.co_filename != "<string>" or code in _code_of("".join(linecache.getlines("<string>")))


@functools.lru_cache(maxsize=4)
def _code_of(text: str) -> set[CodeType]:
    try:
        codes = [compile(text, "<string>", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return set()
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(codes)


class SourceLocator:
    """Finds source locations, and remembers them by code object and instruction for the whole process."""

    _found: ClassVar[dict[tuple[int, int], tuple[CodeType, SourceLocation, ast.AST | None]]] = {}

    def find(self, frame: FrameType | FramePosition) -> tuple[SourceLocation, ast.AST | None]:
        """Return a frame's source location, and its syntax node if that is certain."""
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        if key not in self._found:
            position = frame if isinstance(frame, FramePosition) else FramePosition.of(frame)
            # hold the code object, so that its id stays its own
            self._found[key] = (code, *self._look_up(position.at_call))
        return self._found[key][1:]

    def _look_up(self, frame: FramePosition) -> tuple[SourceLocation, ast.AST | None]:
        code = frame.f_code
        if not has_own_source(code):
            return SourceLocation(code.co_filename, frame.f_lineno, 1, code.co_name, ""), None
        executing = SourceFile.node_at(frame)
        node: Any = executing.node or _unpacking(frame, executing.statements)
        if node is None or not hasattr(node, "lineno"):
            line = frame.f_lineno
            lines = getattr(executing.source, "lines", [])
            text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
            return SourceLocation(code.co_filename, line, 1, code.co_name, _abbreviated(text)), None
        targets, unpacked, annotation = assignment_targets(node)
        place = SourceLocation(
            file=code.co_filename,
            line=node.lineno,
            column=node.col_offset + 1,
            function=code.co_qualname.replace(".<locals>", ""),
            expression=_text(executing.source, displayed_node(node)),
            targets=targets,
            unpacked=unpacked,
            targets_per_iteration=targets_per_iteration(node),
            loop_variables=loop_variables(node),
            declared=dims_string(annotation) if annotation is not None else None,
            declared_kind=kind_name(annotation) if annotation is not None else None,
            statement=element_update(node),
        )
        return place, node


_LONGEST = 2000
"""Longer texts are abbreviated: in an expression of thousands of operands, most operands are part of most texts."""


def _text(source: Source, node: Any) -> str:
    """Return a node's exact text, abbreviated where it is very long.

    `…` stands for the operand with which it begins, as in a table, or for what is in the middle.
    """
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    text = _text_between(source, start, end)
    first = _first_operand(node) if len(text) > _LONGEST else None
    if first is not None:
        before = _text_between(source, start, (first.lineno, first.col_offset))
        after = _text_between(source, (first.end_lineno, first.end_col_offset), end)
        if len(after) < _LONGEST // 2:
            text = f"{before}…{after}"
    return _abbreviated(text)


def _abbreviated(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _first_operand(node: Any) -> Any:
    match node:
        case ast.BinOp(left=operand) | ast.Call(func=ast.Attribute(value=operand)):
            return operand
        case ast.Subscript(value=operand) | ast.Attribute(value=operand):
            return operand
    return None


def _text_between(source: Source, start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the text between two lines and UTF-8 offsets; `ast.get_source_segment` splits the file on each call."""
    lines = _lines(source.text)[start[0] - 1 : end[0]]
    lines[-1] = lines[-1][: end[1]]
    lines[0] = lines[0][start[1] :]
    return b"\n".join(lines).decode()


@functools.lru_cache(maxsize=64)
def _lines(text: str) -> list[bytes]:
    # str.splitlines also splits at form feeds, which don't end a line of Python
    return text.encode().split(b"\n")


def _unpacking(frame: FramePosition, statements: set[Any] | None) -> Any:
    """Return the statement `q, k, v = tensor` if the frame is unpacking the tensor, which has no node of its own."""
    at_unpacking = dis.opname[frame.f_code.co_code[frame.f_lasti]] == "UNPACK_SEQUENCE"
    only = next(iter(statements)) if at_unpacking and statements and len(statements) == 1 else None
    return only if isinstance(only, ast.Assign) else None


def is_node_of(node: ast.AST, call: TracedCall) -> bool:
    """Return whether a node is the call itself, not that of something which makes it, as `sum(rows)` does."""
    if not call.is_module and call.opaque is None:
        return calls_itself(node, call.name)
    return isinstance(node, ast.Call) and not hasattr(builtins, getattr(node.func, "id", ""))


def by_tensor(variables: list[tuple[str, Tensor]]) -> dict[int, str]:
    """Return the first variable of each tensor, by the tensor's id."""
    return {id(tensor): name for name, tensor in reversed(variables)}


def operand_variables(node: ast.AST, call: TracedCall) -> list[tuple[str, Tensor]]:
    """Return the plain variables among a call's operands, each with its tensor."""
    method = not call.is_module and takes_receiver(call.func)
    return plain_variables(node, method, call.args, call.keywords)
